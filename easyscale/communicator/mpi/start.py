"""Begins with MPI. Whoever needs mpi4py takes `MPI` from here.

What MPI reads from the environment is set before, and who watches this process is told that it waits for the others.
"""

import os
import sys
import time

from easyscale.errors import LaunchError
from easyscale.progress import Progress
from easyscale.settings import Settings

__all__ = ["ENDS_ITSELF", "MPI", "beginning", "library", "progress", "said"]

_EAGER_BYTES = 1 << 19  # more than an exchange sends in one message

# Open MPI's component for windows over UCX cannot share memory, and says so in many lines.
os.environ.setdefault("OMPI_MCA_osc", "^ucx")
# Over TCP a message goes off at once up to this length. Longer ones are announced, and wait for an answer, which stands
# behind all that is being sent the other way: between ranks that send to each other a link carried half of what it can.
for _limit in ("eager_limit", "rndv_eager_limit", "max_send_size"):
    os.environ.setdefault(f"OMPI_MCA_btl_tcp_{_limit}", str(_EAGER_BYTES))
if Settings.read().elastic:
    # Else its `MPI_Finalize` waits for a rank that has failed, for ever, one time in ten.
    os.environ.setdefault("OMPI_MCA_async_mpi_finalize", "1")

progress = Progress.of_this_process(Settings.read().progress)
progress.moved()
beginning = progress.begin_wait(time.monotonic(), "waits for all ranks to begin with MPI")
try:
    import mpi4py

    ENDS_ITSELF = "mpi4py.MPI" not in sys.modules  # else whoever was first has seen to the end
    if ENDS_ITSELF:
        mpi4py.rc.finalize = False
    from mpi4py import MPI
except (ImportError, RuntimeError) as error:  # RuntimeError: mpi4py is here, but no MPI library that it can load
    raise LaunchError(
        "several ranks need mpi4py and an MPI library in this Python. "
        f"Received: {type(error).__name__} ({str(error).splitlines()[0]}). Run: pip install 'easyscale[mpi]'"
    ) from None


def library() -> str:
    """Return the MPI library and its version; the rest of what it says of itself is left out."""
    return " ".join(MPI.Get_library_version().strip("\0").splitlines()[0].partition(",")[0].split())


def said(error: MPI.Exception) -> str:
    """Return what the MPI library says of an error, in one line; MPICH adds the calls in which it came up."""
    return str(error).splitlines()[0].removesuffix(", error stack:")
