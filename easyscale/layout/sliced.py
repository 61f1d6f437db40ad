"""An array divided among ranks, such as a matrix by columns or rows. NumPy only."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from easyscale.layout.shards import Memory, Ranks

__all__ = ["Sliced", "bounds_of"]


def bounds_of(length: int, ranks: int, unit: int = 1) -> list[int]:
    """Return the starts of the slices of an axis, and its end. Their lengths differ by one unit at most.

    Args:
        length: Int. The number of units to divide.
        ranks: Int. The number of ranks.
        unit: Int. The number of indices in a unit, which stay together. Defaults to `1`.

    Example:

    >>> bounds_of(10, 4)
    [0, 2, 5, 7, 10]
    """
    return [unit * (length * rank // ranks) for rank in range(ranks + 1)]


class Sliced:
    """An array that is divided among ranks along one of its axes, as evenly as possible.

    Args:
        shape: The shape of the whole.
        axis: Int. The axis.
        ranks: The ranks, such as a `Communicator`.
        unit: Int. The number of indices that stay together. It divides the length of the axis. Defaults to `1`.

    Attributes:
        shape: The same.
    """

    def __init__(self, shape: Sequence[int], axis: int, ranks: "Ranks", unit: int = 1):
        self.shape, self._axis, self._ranks = tuple(shape), axis, ranks
        self._bounds = bounds_of(self.shape[axis] // unit, ranks.size, unit)

    @property
    def part_shape(self) -> tuple[int, ...]:
        """The shape of this rank's slice."""
        own = self._bounds[self._ranks.rank + 1] - self._bounds[self._ranks.rank]
        return (*self.shape[: self._axis], own, *self.shape[self._axis + 1 :])

    def part(self, whole: np.ndarray) -> np.ndarray:
        """Return this rank's slice of a whole array, without a copy."""
        return whole[self._index(self._ranks.rank)]

    def _index(self, rank: int) -> tuple[slice, ...]:
        own = slice(self._bounds[rank], self._bounds[rank + 1])
        return (*[slice(None)] * self._axis, own)

    def collect(self, part: np.ndarray, root: int | None = None, memory: "Memory | None" = None) -> np.ndarray:
        """Return the whole array from all ranks' slices. All ranks must call this the same way.

        Args:
            part: Array. This rank's slice.
            root: Int. The rank that needs the result, which is undefined on others. Defaults to `None`: all need it.
            memory: `SnapshotMemory`. Allocates the result. Defaults to `None`: NumPy does.
        """
        own, part = self._ranks.rank, np.ascontiguousarray(part)
        others = [rank for rank in range(self._ranks.size) if rank != own]
        is_taker = root in (own, None)
        empty = memory.empty if is_taker and memory is not None else np.empty
        whole = empty(self.shape if is_taker else 0, part.dtype)
        requests, apart = [], {}
        if is_taker:
            whole[self._index(own)] = part
            for rank in others:
                target = whole[self._index(rank)]
                if not target.flags.c_contiguous:
                    apart[rank] = target = np.empty_like(target, order="C")
                requests.append(self._ranks.ireceive(target, rank))
        requests += [self._ranks.isend(part, rank) for rank in others if root in (rank, None)]
        for request in requests:
            request.wait()
        for rank, arrived in apart.items():
            whole[self._index(rank)] = arrived
        return whole
