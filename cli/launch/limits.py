"""Checks that this process can start others. Otherwise `mpirun` would fail with a message of its own."""

import math
import os
import resource

from easyscale.errors import LaunchError

__all__ = ["advice", "check", "most_files"]

# Minimum open files of a process, and per rank: 4 in Open MPI's `mpirun`, 5 in the launcher.
_BASE_FILES, _FILES_EACH = 24, 5
_USUAL = 1024  # the usual default limit of open files


def check(processes: int, on_this_host: bool = True) -> None:
    """Check that this process can start a number of others.

    Args:
        processes: Int. Number of processes to start.
        on_this_host: Bool. Whether all of them run here; on other hosts they use files of `mpirun` there. Defaults to
            `True`.

    Raises:
        LaunchError: If the working directory is gone, or the limit of open files is too low.
    """
    try:
        os.getcwd()
    except OSError:
        raise LaunchError(
            "a job must be started from a directory that exists. Received: one that was removed. Change to another one"
        ) from None
    need = _BASE_FILES + _FILES_EACH * processes * on_this_host
    most = most_files()
    if most < need:
        raise LaunchError(
            f"a process must be allowed to have {need} files open to start {processes} others. Received: a limit of "
            f"{most}. Raise it: ulimit -n {max(_USUAL, need)}"
        )


def most_files() -> float:
    """Return the limit of open files per process; infinity if there is none."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return math.inf if most == resource.RLIM_INFINITY else most


def advice() -> str | None:
    """Return a warning if the limit of open files is lower than usual, else `None`."""
    most = most_files()
    if most >= _USUAL:
        return None
    processes = int(most - _BASE_FILES) // _FILES_EACH
    return (
        f"a process may have {most} files open: {max(0, processes)} ranks can be started, and libraries, data and "
        f"checkpoints of each have as few. Raise it: ulimit -n {_USUAL}"
    )
