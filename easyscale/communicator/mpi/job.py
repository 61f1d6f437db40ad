"""State of a job that all communicators of a process share."""

import numpy as np

from easyscale.communicator.mpi.start import MPI, progress
from easyscale.communicator.named_memory import remove_names
from easyscale.elastic.departures import Departures
from easyscale.elastic.elastic_membership import ElasticJob
from easyscale.elastic.mail import Mail

__all__ = ["Job"]


class Job:
    """All processes that the launcher has started. Collective: all of them must create it.

    Args:
        intra: `mpi4py.MPI.Intracomm` of these processes.
        least_workers: Int. An elastic job ends with fewer workers. `None` if any failure ends the job.
        spares: Int. The number of processes, the last ones, that are not ranks until they replace one.
        keeps_global_batch: Bool. Whether the remaining workers divide the global batch again.

    Attributes:
        count: Int. The number of ranks at the start.
        node: `mpi4py.MPI.Intracomm` of the processes of this node.
        node_of: Array. For each world rank, the first world rank of its node.
        departures: `Departures`.
        elastic: `ElasticJob`, or `None`.
    """

    def __init__(self, intra: MPI.Intracomm, least_workers: int | None, spares: int, keeps_global_batch: bool):
        is_elastic = least_workers is not None and intra.size > 1
        self.count = intra.size - spares if is_elastic else intra.size
        mail = Mail(intra, MPI.Status, MPI.Exception, MPI.ANY_SOURCE, is_elastic)
        self.departures = Departures(mail)
        self.elastic: ElasticJob | None = None
        if least_workers is not None and is_elastic:
            self.elastic = ElasticJob(
                mail,
                self.departures,
                progress,
                self.count,
                spares,
                least_workers,
                keeps_global_batch,
                MPI.Finalize,
            )
        self.node = ranks_of_this_node(intra)
        first, self.node_of = np.array([intra.rank]), np.empty(intra.size, int)
        self.node.Bcast(first)
        intra.Allgather(first, self.node_of)
        remove_names()


def ranks_of_this_node(intra: MPI.Intracomm) -> MPI.Intracomm:
    """Return a new communicator of the ranks that share memory with this one."""
    # mpi4py's stubs declare a `Comm`; splitting an `Intracomm` returns an `Intracomm`.
    return intra.Split_type(MPI.COMM_TYPE_SHARED)  # type: ignore[return-value]
