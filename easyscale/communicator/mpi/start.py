"""Initialisation of MPI. Other modules import `MPI` from here.

The environment variables that MPI reads are set before, and the watcher of this process is notified that it waits for
the others.
"""

import os
import sys
import time

from easyscale.errors import LaunchError
from easyscale.progress import Progress
from easyscale.settings import Settings

__all__ = ["ENDS_ITSELF", "MPI", "beginning", "library", "progress", "said"]

_EAGER_BYTES = 1 << 19  # more than a ring or a parameter server sends in one message

# Open MPI's component for windows over UCX cannot share memory, and prints many lines about it.
os.environ.setdefault("OMPI_MCA_osc", "^ucx")
# Over TCP a message up to this length is sent eagerly. A longer one is announced and waits for a reply, which queues
# behind everything sent the other way: between ranks that send to each other a link reached half its bandwidth.
for _limit in ("eager_limit", "rndv_eager_limit", "max_send_size"):
    os.environ.setdefault(f"OMPI_MCA_btl_tcp_{_limit}", str(_EAGER_BYTES))
if Settings.read().elastic:
    # Otherwise, one time in ten, its `MPI_Finalize` waits forever for a rank that has failed.
    os.environ.setdefault("OMPI_MCA_async_mpi_finalize", "1")

progress = Progress.of_this_process(Settings.read().progress)
progress.moved()
beginning = progress.begin_wait(time.monotonic(), "waits for all ranks to begin with MPI")
try:
    import mpi4py

    ENDS_ITSELF = "mpi4py.MPI" not in sys.modules  # otherwise the first importer finalises MPI
    if ENDS_ITSELF:
        mpi4py.rc.finalize = False
    from mpi4py import MPI
except (ImportError, RuntimeError) as error:  # RuntimeError: mpi4py is installed, but no MPI library that it can load
    raise LaunchError(
        "several ranks need mpi4py and an MPI library in this Python. "
        f"Received: {type(error).__name__} ({str(error).splitlines()[0]}). Run: pip install 'easyscale[mpi]'"
    ) from None


def library() -> str:
    """Return the name and version of the MPI library, without the details that it adds."""
    return " ".join(MPI.Get_library_version().strip("\0").splitlines()[0].partition(",")[0].split())


def said(error: MPI.Exception) -> str:
    """Return the MPI library's message for an error, in one line, without the call stack that MPICH adds."""
    return str(error).splitlines()[0].removesuffix(", error stack:")
