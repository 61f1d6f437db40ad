"""Ranks as MPI processes. The only package that imports mpi4py.

start           initialises MPI
job             the processes of the job: who is on this node, who has left
communicator    the communicator: messages between ranks
transfer        messages in progress
collectives     MPI's own collectives
memory          memory shared by the ranks of a node
waiting         waiting for other ranks
ending          the end of a process
"""

import atexit
import functools
import os
import sys

from easyscale import launchers
from easyscale.communicator.mpi.communicator import Mpi
from easyscale.communicator.mpi.ending import Ending
from easyscale.communicator.mpi.job import Job
from easyscale.communicator.mpi.start import MPI, beginning, library, progress, said
from easyscale.communicator.watch import watch
from easyscale.errors import LaunchError, PeerError
from easyscale.progress import Leave
from easyscale.settings import Settings

__all__ = ["Mpi", "world"]


@functools.cache
def world() -> Mpi:
    """Return the communicator of all ranks that the launcher started. Every rank must call this."""
    start = launchers.detect()
    if start is not None and start.size != MPI.COMM_WORLD.size:
        raise LaunchError(
            f"the launcher and the MPI library of mpi4py must be of one kind. Received: {start.name} started "
            f"{start.size} ranks, {library()} found {MPI.COMM_WORLD.size}. Start with `easyscale launch`, or with the "
            "mpirun of that library; with srun choose its `--mpi` plugin"
        )
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        raise LaunchError(
            "MPI must be initialised with the thread level `serialized` or `multiple`, because TensorFlow calls it "
            "from its own threads. Set `mpi4py.rc.thread_level = 'multiple'` before mpi4py is first imported"
        )
    told = Settings.read()
    try:
        intra = MPI.COMM_WORLD.Dup()
        job = Job(intra, told.elastic, told.spares, told.elastic_batch == "global")
    except MPI.Exception as error:
        progress.leave = Leave.GAVE_UP
        raise PeerError(f"all ranks must begin with MPI. Received: {said(error)}. Has one failed meanwhile?") from None
    if told.elastic and not library().startswith("Open MPI"):
        raise LaunchError(
            f"an elastic job needs Open MPI 5 or later. Received: EASYSCALE_ELASTIC={told.elastic} and {library()}. "
            "Unset EASYSCALE_ELASTIC, or run: pip install 'easyscale[mpi]'"
        )
    communicator = Mpi(intra, job, _servers(told.servers, job.count))
    os.environ.update(Settings(rank_process=os.getpid()).variables())  # for its children
    ending = Ending(communicator, job.departures)
    atexit.register(ending.leave)
    if communicator.size > 1:
        if not progress.pid:  # nobody else watches
            watch(communicator, told.stall_timeout, ending.abort)
        sys.excepthook = functools.partial(ending.show, sys.excepthook)
    progress.end_wait(beginning)
    progress.met = 1
    return communicator


def _servers(count: int, size: int) -> int:
    """Return the number of servers among `size` ranks if `count` are requested."""
    if count >= size > 1:
        raise LaunchError(
            f"EASYSCALE_SERVERS must be a number of servers that leaves one worker. Received: {count} of {size} ranks. "
            "Start with `easyscale launch -n 4 --servers 2`, which starts 6"
        )
    return count if size > 1 else 0
