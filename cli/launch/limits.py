"""Whether this process can start others at all. Where it cannot, `mpirun` says so in words of its own."""

import math
import os
import resource

from easyscale.errors import LaunchError

__all__ = ["advice", "check", "most_files"]

# That a process has open at least, and for each rank: Open MPI's `mpirun` 4 of a rank, the launcher 5.
_BASE_FILES, _FILES_EACH = 24, 5
_USUAL = 1024  # files that a process may have open where nobody has said anything else


def check(processes: int, on_this_host: bool = True) -> None:
    """Check that so many processes can be started from here.

    Args:
        processes: Int. Their number.
        on_this_host: Bool. Whether all of them run here: on other hosts they have files of `mpirun`'s there. Defaults
            to `True`.

    Raises:
        LaunchError: If the working directory is gone, or too few files may be open.
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
    """Return how many files a process may have open; infinity if there is no limit."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return math.inf if most == resource.RLIM_INFINITY else most


def advice() -> str | None:
    """Return what to say of a limit that is lower than usual; `None` if it is not."""
    most = most_files()
    if most >= _USUAL:
        return None
    processes = int(most - _BASE_FILES) // _FILES_EACH
    return (
        f"a process may have {most} files open: {max(0, processes)} ranks can be started, and libraries, data and "
        f"checkpoints of each have as few. Raise it: ulimit -n {_USUAL}"
    )
