"""Checks that `/dev/shm` has room for MPI. Otherwise MPI would fail with its own message, or a process would die of a
bus error at any time.
"""

import math
import os

from easyscale.errors import LaunchError

__all__ = ["FOLDER", "advice", "check", "room", "segment", "shortage"]

FOLDER = "/dev/shm"

_BASE, _EACH = 1 << 20, 1 << 18  # bytes that Open MPI uses at startup, and per process; twice the measured values
_LEAST = (2 << 20) * 21 // 20  # bytes that must be free: it requests 2 MiB at once, plus 5 %
_SEGMENT = 1 << 24  # bytes for the messages of a process, Open MPI's default; allocated when used
_LARGE = 8  # GiB; the recommended size, if it is enough


def check(processes: int, folder: str = FOLDER) -> None:
    """Check that there is room for a number of processes.

    Raises:
        LaunchError: If there is not.
    """
    free, size = _room(folder)
    need = _need(processes)
    if free < need:
        raise LaunchError(
            f"{folder} of {os.uname().nodename} must have room for what MPI keeps there. Received: {_text(free)} free "
            f"of {_text(size)}, for {processes} processes that need {_text(need)}. {_remedy(need)}"
        )


def segment(processes: int, folder: str = FOLDER) -> int | None:
    """Return the bytes that each process may use for messages so that all fit; `None` if the default fits.

    Half of the free space is left for the memory that ranks share.
    """
    free, _ = _room(folder)
    if free - _need(processes) >= 2 * processes * _SEGMENT:
        return None
    return max(_EACH, (free - _need(processes)) // (2 * processes) // 4096 * 4096)


def advice(processes: int, folder: str = FOLDER) -> str | None:
    """Return a warning if the processes get less memory for messages than by default, else `None`."""
    if segment(processes, folder) is None:
        return None
    need = 2 * processes * _SEGMENT + _need(processes)
    return (
        f"{room(folder)}, of which {processes} ranks would use {_text(need)} for messages and as much as they can for "
        f"gradients: those that find no room travel as slower messages. {_remedy(need)}"
    )


def room(folder: str = FOLDER) -> str:
    """Describe the free space in words."""
    free, size = _room(folder)
    return f"{_text(free)} free of {_text(size)}"


def shortage(folder: str = FOLDER) -> str:
    """Return an explanation for a process that died of a bus error; `""` if there is room."""
    free, _ = _room(folder)
    if free > _BASE:
        return ""
    return f"{folder} of {os.uname().nodename} is full, {room(folder)}. {_remedy()}"


def _remedy(need: int = 0) -> str:
    gigabytes = max(_LARGE, math.ceil(2 * need / 2**30))  # half of it is for the memory that ranks share
    return (
        f"Make it larger (`mount -o remount,size={gigabytes}G {FOLDER}`, `docker run --shm-size={gigabytes}g`, an "
        "`emptyDir` of medium `Memory` in Kubernetes), or remove what others have left there"
    )


def _need(processes: int) -> int:
    return max(_LEAST, _BASE + processes * _EACH)


def _text(nbytes: int) -> str:
    return f"{nbytes / 1e6:.1f} MB" if nbytes >= 1e6 else f"{nbytes / 1e3:.0f} KB"


def _room(folder: str) -> tuple[int, int]:
    """Return the free bytes and the size; very large numbers if they are unknown."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return 1 << 62, 1 << 62
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
