"""The base class of the ways to move rows to the owners of slices, and results back.

A row is a layer's unit of computation: a sample, or a position in a sequence. Worker `r` has `m_r` rows.
"""

import abc
from collections.abc import Sequence

import numpy as np

from easyscale.communicator import Communicator
from easyscale.layout.sliced import bounds_of

__all__ = ["Trip"]


class Trip(abc.ABC):
    """Moves the rows of one call to the owners, the results back, and then the gradients of both, in this order.

    If a call has several arrays for the owners, `give` takes all of them, and `gradients_to_workers` one after the
    other.

    Args:
        communicator: The `Communicator`. All ranks call each method together.
        length: Int. The length of the axis that is divided over ranks.
        unit: Int. The columns of rows per index of that axis. Defaults to `1`.
    """

    def __init__(self, communicator: Communicator, length: int, unit: int = 1):
        self._communicator = communicator
        self._bounds = bounds_of(length, communicator.size, unit)
        self._counts: list[int] = []  # rows per rank

    @staticmethod
    @abc.abstractmethod
    def cost(into: float, out: float, ranks: int, has_gradient: bool = True) -> float:
        """Return the bytes that a rank sends in a step.

        Args:
            into: Number. The bytes of a worker's rows.
            out: Number. The bytes of their results.
            ranks: Int. The number of ranks.
            has_gradient: Bool. Whether something before the layer needs the gradients of the rows. Defaults to `True`.
        """

    @abc.abstractmethod
    def width_at_owner(self, width: int) -> int:
        """Return the width of the rows that this owner receives, given the width of workers' rows."""

    @abc.abstractmethod
    def width_at_worker(self, width: int) -> int:
        """Return the width of the rows that a worker gets back, given the width of this owner's rows."""

    def give(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Send the owners all arrays of a call, which have equally many rows; return those that this owner receives."""
        self._counts = []
        return [self.to_owners(rows) for rows in arrays]

    @abc.abstractmethod
    def to_owners(self, rows: np.ndarray) -> np.ndarray:
        """Send this worker's rows to the owners; return those that this owner receives."""

    @abc.abstractmethod
    def to_workers(self, rows: np.ndarray) -> np.ndarray:
        """Send the results of this owner to the workers; return those for this worker, one per row."""

    @abc.abstractmethod
    def gradients_to_owners(self, rows: np.ndarray) -> np.ndarray:
        """Send the owners the gradients of `to_workers`' results; return those of its arguments."""

    @abc.abstractmethod
    def gradients_to_workers(self, rows: np.ndarray) -> np.ndarray:
        """Send the workers the gradients of `to_owners`' results; return those of its arguments."""

    def _count(self, rows: np.ndarray) -> None:
        """Exchange the number of rows on each rank, for each array that a call sends to the owners."""
        self._set_counts(self._communicator.all_gather_rows(np.array([len(rows)]))[:, 0].tolist())

    def _set_counts(self, counts: list[int]) -> None:
        if self._counts not in ([], counts):
            raise ValueError(
                "all that a split layer, or its loss, is given in a call must be of as many samples or positions. "
                f"Received: {self._counts} and {counts} on ranks 0 to {len(counts) - 1}. Give it as many of each"
            )
        self._counts = counts
