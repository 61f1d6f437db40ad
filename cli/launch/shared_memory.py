"""Whether `/dev/shm` has room for what MPI keeps there. Where it has not, the library says so in words of its own, or a
process ends by a bus error in the middle of what it does.
"""

import math
import os

from easyscale.errors import LaunchError

__all__ = ["FOLDER", "advice", "check", "room", "segment", "shortage"]

FOLDER = "/dev/shm"

_BASE, _EACH = 1 << 20, 1 << 18  # bytes that Open MPI takes at the start, and for each process; twice what was measured
_LEAST = (2 << 20) * 21 // 20  # bytes that have to be free: it asks for 2 MiB at once, and a twentieth more
_SEGMENT = 1 << 24  # bytes of a process's messages to others, as Open MPI has them by default; taken when they are used
_LARGE = 8  # GiB; what is advised where that is enough


def check(processes: int, folder: str = FOLDER) -> None:
    """Check that so many processes can begin.

    Raises:
        LaunchError: If there is no room for them.
    """
    free, size = _room(folder)
    need = _need(processes)
    if free < need:
        raise LaunchError(
            f"{folder} of {os.uname().nodename} must have room for what MPI keeps there. Received: {_text(free)} free "
            f"of {_text(size)}, for {processes} processes that need {_text(need)}. {_remedy(need)}"
        )


def segment(processes: int, folder: str = FOLDER) -> int | None:
    """Return the bytes that each process may take for messages, so that all have room; `None` if they may as ever.

    Half of what is free stays for the memory that ranks share.
    """
    free, _ = _room(folder)
    if free - _need(processes) >= 2 * processes * _SEGMENT:
        return None
    return max(_EACH, (free - _need(processes)) // (2 * processes) // 4096 * 4096)


def advice(processes: int, folder: str = FOLDER) -> str | None:
    """Return what to say of a folder where so many processes get less memory for messages than by default."""
    if segment(processes, folder) is None:
        return None
    need = 2 * processes * _SEGMENT + _need(processes)
    return (
        f"{room(folder)}, of which {processes} ranks would use {_text(need)} for messages and as much as they can for "
        f"gradients: those that find no room travel as slower messages. {_remedy(need)}"
    )


def room(folder: str = FOLDER) -> str:
    """Return how much room there is, in words."""
    free, size = _room(folder)
    return f"{_text(free)} free of {_text(size)}"


def shortage(folder: str = FOLDER) -> str:
    """Return what to say of a process that a bus error has ended: nothing if there is room."""
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
    """The bytes that are free, and all there are; where that is not known, very many."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return 1 << 62, 1 << 62
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
