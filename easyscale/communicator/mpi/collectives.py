"""MPI's own collectives, which the library tunes for the network."""

import numpy as np

from easyscale.communicator.communicator import as_bytes
from easyscale.communicator.mpi.start import MPI
from easyscale.communicator.mpi.transfer import messages
from easyscale.communicator.mpi.waiting import Waiting

__all__ = ["LibraryCollectives"]


class LibraryCollectives:
    """The MPI library's collectives over all processes; not for elastic jobs, where they would include failed ones.

    Args:
        intra: `mpi4py.MPI.Intracomm`.
        waiting: `Waiting` of its ranks.
    """

    def __init__(self, intra: MPI.Intracomm, waiting: Waiting):
        self._intra, self._waiting = intra, waiting

    def all_gather_rows(self, row: np.ndarray) -> np.ndarray:
        """See `Communicator`."""
        rows = np.empty((self._intra.size, *row.shape), row.dtype)
        request = self._intra.Iallgather([as_bytes(np.ascontiguousarray(row)), MPI.BYTE], [as_bytes(rows), MPI.BYTE])
        self._waiting.wait(request, "waits for the other ranks")
        return rows

    def all_reduce(self, buffer: np.ndarray) -> None:
        """See `Communicator`."""
        with self._waiting.inside_mpi("sums with the other ranks"):
            for part in messages(buffer):
                self._intra.Allreduce(MPI.IN_PLACE, part)

    def reduce_scatter(self, buffer: np.ndarray, bounds: np.ndarray) -> None:
        """See `Communicator`."""
        first, last = bounds[self._intra.rank], bounds[self._intra.rank + 1]
        own = np.empty(last - first, buffer.dtype)
        with self._waiting.inside_mpi("sums with the other ranks"):
            self._intra.Reduce_scatter(buffer, own, np.diff(bounds).tolist())
        buffer[first:last] = own

    def all_gather(self, buffer: np.ndarray, bounds: np.ndarray) -> None:
        """See `Communicator`."""
        offsets = bounds * buffer.itemsize
        counts = (np.diff(offsets).tolist(), offsets[:-1].tolist())
        with self._waiting.inside_mpi("waits for the other ranks"):
            self._intra.Allgatherv(MPI.IN_PLACE, [as_bytes(buffer), counts, MPI.BYTE])
