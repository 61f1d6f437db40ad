"""Communication within a group of ranks that share a batch: each has all rows already."""

from typing import ClassVar

import numpy as np

from easyscale.parallel.split.trip.columns import Columns
from easyscale.parallel.split.trip.lookup import Lookup
from easyscale.parallel.split.trip.moves import columns_of, others_of, transfer
from easyscale.parallel.split.trip.rows import Rows
from easyscale.parallel.split.trip.summands import Summands
from easyscale.parallel.split.trip.trip import Trip

__all__ = ["ColumnsWithin", "LookupWithin", "RowsWithin", "SummandsWithin", "WithinGroup", "within"]


class WithinGroup(Trip):
    """A `Trip` within a group: its ranks have the same rows, and get the same results, to the last bit.

    Attributes:
        moves_rows: Bool. Whether `to_owners` does anything: otherwise an owner takes the rows as they are.
        moves_gradients: Bool. Whether `gradients_to_owners` does anything.
        needs_rows: Bool. Whether `gradients_to_owners` needs the rows again if there was another call in between.
    """

    moves_rows: ClassVar[bool] = False
    moves_gradients: ClassVar[bool] = False
    needs_rows: ClassVar[bool] = False

    def to_owners(self, rows: np.ndarray) -> np.ndarray:
        return rows

    def gradients_to_owners(self, rows: np.ndarray, given: np.ndarray | None = None) -> np.ndarray:
        return rows

    def _own(self, rows: np.ndarray) -> np.ndarray:
        """Return this owner's columns."""
        return np.ascontiguousarray(rows[:, columns_of(self._bounds)[self._communicator.rank]])

    def _join(self, columns: np.ndarray) -> np.ndarray:
        """Return the columns of all ranks; each rank sends its own to each other."""
        own, spans, others = self._communicator.rank, columns_of(self._bounds), others_of(self._communicator)
        parts = {r: np.empty((len(columns), spans[r].stop - spans[r].start), columns.dtype) for r in others}
        transfer(self._communicator, dict.fromkeys(others, columns), parts)
        parts[own] = columns
        return np.concatenate([parts[rank] for rank in range(self._communicator.size)], axis=1)

    def _sum(self, rows: np.ndarray) -> np.ndarray:
        """Return the sum over ranks: `2 (G - 1) / G` of its bytes, in `2 (G - 1)` messages."""
        total = np.array(rows, order="C")
        self._communicator.all_reduce(total.reshape(-1))
        return total


class ColumnsWithin(WithinGroup, Columns):
    """Compute some columns of the result on each rank, which has all rows, then gather all columns.

        rank 0  x ---> x w[:, :c] ---+---> [y0 | y1]
                                     X
        rank 1  x ---> x w[:, c:] ---+---> [y0 | y1]

    With `G` ranks, rows of `a` bytes in and `b` bytes out, a rank sends in a step

        (G - 1) / G b        its columns of the results, to each other rank
        2 (G - 1) / G a      the sum of the gradients of the rows

    in `3 (G - 1)` messages. Gradients of rows that nothing before the layer needs are not summed.

    Reference: Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism",
    2019.
    """

    moves_gradients = True

    @staticmethod
    def cost(into: float, out: float, ranks: int, has_gradient: bool = True) -> float:
        return (ranks - 1) / ranks * (2 * into * has_gradient + out)

    def to_workers(self, rows: np.ndarray) -> np.ndarray:
        return self._join(rows)

    def gradients_to_owners(self, rows: np.ndarray, given: np.ndarray | None = None) -> np.ndarray:
        return self._own(rows)

    def gradients_to_workers(self, rows: np.ndarray) -> np.ndarray:
        return self._sum(rows)


class RowsWithin(WithinGroup, Rows):
    """Compute a summand of the result on each rank, from some columns of the input, then sum.

        rank 0  [x | .] ---> x[:, :c] w[:c] ---+---> y0 + y1
                                               X
        rank 1  [. | x] ---> x[:, c:] w[c:] ---+---> y0 + y1

    The reverse of `ColumnsWithin`: a rank sends `(G - 1) / G (2 b + a)` bytes in a step, in `3 (G - 1)` messages;
    without the gradients of the rows `(G - 1) / G a` less.
    """

    moves_rows = True

    @staticmethod
    def cost(into: float, out: float, ranks: int, has_gradient: bool = True) -> float:
        return (ranks - 1) / ranks * (into * has_gradient + 2 * out)

    def to_owners(self, rows: np.ndarray) -> np.ndarray:
        return self._own(rows)

    def to_workers(self, rows: np.ndarray) -> np.ndarray:
        return self._sum(rows)

    def gradients_to_workers(self, rows: np.ndarray) -> np.ndarray:
        return self._join(rows)


class SummandsWithin(WithinGroup, Summands):
    """Compute a summand of the result on each rank, such as some heads', from all rows, then sum.

    Intermediate values stay at their owner. A rank sends one sum forward and one backward: `2 (G - 1) / G (a + b)`
    bytes in a step, in `4 (G - 1)` messages, and `2 (G - 1)` messages more for each further array with a gradient.
    """

    @staticmethod
    def cost(into: float, out: float, ranks: int, has_gradient: bool = True) -> float:
        return 2 * (ranks - 1) / ranks * (into * has_gradient + out)

    def to_workers(self, rows: np.ndarray) -> np.ndarray:
        return self._sum(rows)

    def gradients_to_workers(self, rows: np.ndarray) -> np.ndarray:
        return self._sum(rows)


class LookupWithin(WithinGroup, Lookup):
    """Look up each number on the rank that owns its row, then sum, so that all ranks get all rows.

    A rank sends the sum of `b` bytes of rows, `2 (G - 1) / G b` bytes, in `2 (G - 1)` messages, and nothing backward.
    """

    moves_rows = moves_gradients = needs_rows = True

    @staticmethod
    def cost(into: float, out: float, ranks: int, has_gradient: bool = False) -> float:
        return 2 * (ranks - 1) / ranks * out

    def to_owners(self, rows: np.ndarray) -> np.ndarray:
        self._check(rows)
        self._is_own = self._owns(rows)
        return rows[self._is_own] - rows.dtype.type(self._bounds[self._communicator.rank])

    def to_workers(self, rows: np.ndarray) -> np.ndarray:
        found = np.zeros((len(self._is_own), *rows.shape[1:]), rows.dtype)
        found[self._is_own] = rows
        return self._sum(found)

    def gradients_to_owners(self, rows: np.ndarray, given: np.ndarray | None = None) -> np.ndarray:
        return rows[self._is_own if given is None else self._owns(given)]

    def _owns(self, rows: np.ndarray) -> np.ndarray:
        first, stop = self._bounds[self._communicator.rank : self._communicator.rank + 2]
        return (rows >= first) & (rows < stop)


_WITHIN: dict[type[Trip], type[WithinGroup]] = {
    Columns: ColumnsWithin,
    Rows: RowsWithin,
    Summands: SummandsWithin,
    Lookup: LookupWithin,
}


def within(trip: type[Trip]) -> type[WithinGroup]:
    """Return the class for a group that corresponds to one across workers."""
    return _WITHIN[trip]
