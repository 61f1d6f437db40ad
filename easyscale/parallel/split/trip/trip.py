"""What a way of rows to the owners of slices, and back, does.

A row is what a layer computes something of: a sample, or a position in a sequence. Worker `r` has `m_r` of them.
"""

import abc
from collections.abc import Sequence

import numpy as np

from easyscale.communicator import Communicator
from easyscale.layout.sliced import bounds_of

__all__ = ["Trip"]


class Trip(abc.ABC):
    """One way to the owners and back, and that of its gradients, in this order.

    If a call of a layer has several arrays for the owners, `give` takes all of them, and `gradients_to_workers` one
    after the other.

    Args:
        communicator: The `Communicator`. All ranks call each method alike.
        length: Int. Of the axis that is divided over ranks.
        unit: Int. The columns of rows that belong to one index of it. Defaults to `1`.
    """

    def __init__(self, communicator: Communicator, length: int, unit: int = 1):
        self._communicator = communicator
        self._bounds = bounds_of(length, communicator.size, unit)
        self._counts: list[int] = []  # the rows of each rank

    @staticmethod
    @abc.abstractmethod
    def cost(into: float, out: float, ranks: int, has_gradient: bool = True) -> float:
        """Return the bytes that a rank sends in a step.

        Args:
            into: Number. The bytes of a worker's rows.
            out: Number. The bytes of what comes back for them.
            ranks: Int. The number of ranks.
            has_gradient: Bool. Whether something before the layer needs the gradient by the rows. Defaults to `True`.
        """

    @abc.abstractmethod
    def width_at_owner(self, width: int) -> int:
        """Return how wide the rows are that come to this owner, of workers' rows of a width."""

    @abc.abstractmethod
    def width_at_worker(self, width: int) -> int:
        """Return how wide the rows are that come back to a worker, of this owner's rows of a width."""

    def give(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Give the owners all arrays of a call, which have as many rows; return what comes to this owner."""
        self._counts = []
        return [self.to_owners(rows) for rows in arrays]

    @abc.abstractmethod
    def to_owners(self, rows: np.ndarray) -> np.ndarray:
        """Give this worker's rows to the owners; return what comes to this owner."""

    @abc.abstractmethod
    def to_workers(self, rows: np.ndarray) -> np.ndarray:
        """Give what this owner has computed to the workers; return what comes to this worker, a row for each."""

    @abc.abstractmethod
    def gradients_to_owners(self, rows: np.ndarray) -> np.ndarray:
        """Give the owners the gradients by what `to_workers` has returned; return those by what it was given."""

    @abc.abstractmethod
    def gradients_to_workers(self, rows: np.ndarray) -> np.ndarray:
        """Give the workers the gradients by what `to_owners` has returned; return those by what it was given."""

    def _count(self, rows: np.ndarray) -> None:
        """Take in how many rows each rank has, of each array that a call has for the owners."""
        self._set_counts(self._communicator.all_gather_rows(np.array([len(rows)]))[:, 0].tolist())

    def _set_counts(self, counts: list[int]) -> None:
        if self._counts not in ([], counts):
            raise ValueError(
                "all that a split layer, or its loss, is given in a call must be of as many samples or positions. "
                f"Received: {self._counts} and {counts} on ranks 0 to {len(counts) - 1}. Give it as many of each"
            )
        self._counts = counts
