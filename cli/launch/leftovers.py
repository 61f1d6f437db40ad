"""Ends orphans: processes that a job's ranks have started and left behind.

An orphan becomes a child of the rank's worker, which ends it after the rank. If the worker itself is killed, the
launcher and its janitor find the orphans by their environment.
"""

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["adopt", "die_with_parent", "end_children", "end_marked", "reap"]

_PATIENCE = 1.0  # seconds for a process to end after a SIGTERM, and again after a SIGKILL
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def adopt() -> None:
    """Make orphaned descendants of this process its children."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Have this process receive a signal when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def reap(but: int | None = None) -> bool:
    """Reap children that have ended, except `but`; return whether there are any children."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and ended.si_pid != but:
            os.waitpid(ended.si_pid, 0)
        return True
    return False


def end_children() -> None:
    """End all descendants of this process."""
    if reap():
        import psutil  # not at the top: every rank would wait for it

        _end(lambda: [child.pid for child in psutil.Process().children(recursive=True) if reap()])


def end_marked(mark: str) -> None:
    """End the processes that have this text in their environment, which this one does not."""
    _end(lambda: [int(folder.name) for folder in Path("/proc").glob("[0-9]*") if _is_marked(folder, mark.encode())])


def _end(find: Callable[[], list[int]]) -> None:
    """Terminate processes, then kill them, until `find` returns none."""
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
        return mark in (folder / "environ").read_bytes()  # empty if the process has ended
    except OSError:
        return False
