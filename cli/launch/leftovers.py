"""Processes that a job's ranks have started and left behind: they end with the job.

What a rank has started becomes a child of its worker when the one between has ended, and the worker ends it after the
rank. If the worker is killed itself, the launcher and its janitor find these processes by their environment.
"""

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["adopt", "die_with_parent", "end_children", "end_marked", "reap"]

_PATIENCE = 1.0  # seconds that a process has to end after a SIGTERM, and again after a SIGKILL
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def adopt() -> None:
    """Have all descendants of this process become its children when their parents have ended."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Have this process get a signal when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def reap(but: int | None = None) -> bool:
    """Wait for children that have ended, but not for that one; return whether there are any children."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and ended.si_pid != but:
            os.waitpid(ended.si_pid, 0)
        return True
    return False


def end_children() -> None:
    """End all descendants of this process."""
    if reap():
        import psutil  # not before: every rank would wait for it

        _end(lambda: [child.pid for child in psutil.Process().children(recursive=True) if reap()])


def end_marked(mark: str) -> None:
    """End the processes that have this text in their environment; this one is none of them."""
    _end(lambda: [int(folder.name) for folder in Path("/proc").glob("[0-9]*") if _is_marked(folder, mark.encode())])


def _end(find: Callable[[], list[int]]) -> None:
    """Ask processes to end, then kill them, until none is found."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        end = time.monotonic() + _PATIENCE
        told: set[int] = set()
        while (found := find()) and time.monotonic() < end:
            for pid in {*found} - told:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
            told |= {*found}
            time.sleep(0.01)
        if not found:
            return


def _is_marked(folder: Path, mark: bytes) -> bool:
    try:
        return mark in (folder / "environ").read_bytes()  # nothing of one that has ended
    except OSError:
        return False
