"""Whether this process can start others at all. Where it cannot, `mpirun` says so in words of its own."""

import os
import resource

from easyscale.errors import LaunchError

__all__ = ["check"]

_BASE_FILES, _FILES_EACH = 24, 4  # that Open MPI's `mpirun` has open at least, and for each process


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
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < need:
        raise LaunchError(
            f"a process must be allowed to have {need} files open to start {processes} others. Received: a limit of "
            f"{most}. Raise it: ulimit -n {max(1024, need)}"
        )
