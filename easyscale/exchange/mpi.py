"""The communicator's own collectives: the baseline that the others are measured against."""

import numpy as np

from easyscale.exchange.exchange import Exchange
from easyscale.exchange.registry import register
from easyscale.exchange.vectors import HALF, check


@register("mpi")
class MpiCollectives(Exchange):
    """Leave the work to the MPI library: `MPI_Reduce_scatter`, `MPI_Allgatherv` and `MPI_Allreduce`.

    The library chooses the algorithm by size and topology, so the cost depends on it. It busy-waits. With the `local`
    communicator every part goes directly to its owner and back: `2 * (P - 1)` messages.

    Reference: MPI Forum, "MPI: A Message-Passing Interface Standard", version 3.1, chapter 5, 2015.
    """

    is_elastic = True
    travels_by = "library"

    def allreduce(self, buffer: np.ndarray) -> None:
        check(buffer)
        if self.communicator.size == 1 or buffer.dtype in HALF:
            super().allreduce(buffer)
        else:
            self.communicator.all_reduce(buffer)

    def _reduce(self, buffer: np.ndarray) -> None:
        self.communicator.reduce_scatter(buffer, self._bounds(buffer.size))

    def _gather(self, buffer: np.ndarray) -> None:
        self.communicator.all_gather(buffer, self._bounds(buffer.size))

    def _bounds(self, length: int) -> np.ndarray:
        ranks = range(self.communicator.size)
        return np.array([0] + [self._owned_range(length, rank).stop for rank in ranks])
