"""Numbers to the owners of the rows of a table; these rows back."""

import numpy as np

from easyscale.parallel.split.trip.moves import others_of, ranges, transfer
from easyscale.parallel.split.trip.trip import Trip

__all__ = ["Lookup"]


class Lookup(Trip):
    """Send each number to the owner of its row of a table, which sends the row back.

        worker 0  [7 1] ---+---> owner 0  rows 0 to 4:  1 2  --+---> worker 0  [row 7, row 1]
                            X                                   X
        worker 1  [2 9] ---+---> owner 1  rows 5 to 9:  7 9  --+---> worker 1  [row 2, row 9]

    With `k` bytes of numbers and `b` bytes of rows on each worker, spread evenly over the table, a rank sends
    `(P - 1) / P (k + 2 b)` bytes in a step, in `3 (P - 1)` messages, and to each other the count of numbers for each
    owner. Rows that a worker owns itself are not sent.
    """

    @staticmethod
    def cost(into: float, out: float, ranks: int, has_gradient: bool = False) -> float:
        return (ranks - 1) / ranks * (into + 2 * out)

    def width_at_owner(self, width: int) -> int:
        return width

    def width_at_worker(self, width: int) -> int:
        return width

    def to_owners(self, rows: np.ndarray) -> np.ndarray:
        self._check(rows)
        owners = np.searchsorted(self._bounds, rows, side="right") - 1
        self._order = np.argsort(owners, kind="stable")
        own = np.bincount(owners, minlength=self._communicator.size)
        self._wanted = self._communicator.all_gather_rows(own)  # by worker, then by owner
        first = self._bounds[self._communicator.rank]
        return self._move(rows[self._order], self._wanted) - rows.dtype.type(first)

    def _check(self, rows: np.ndarray) -> None:
        if rows.size and not 0 <= rows.min() <= rows.max() < self._bounds[-1]:
            raise ValueError(
                f"the numbers that an embedding is given must be from 0 to {self._bounds[-1] - 1}. Received: numbers "
                f"from {rows.min()} to {rows.max()}. Give the layer a larger `input_dim`"
            )

    def to_workers(self, rows: np.ndarray) -> np.ndarray:
        arrived = self._move(rows, self._wanted.T)
        result = np.empty_like(arrived)
        result[self._order] = arrived
        return result

    def gradients_to_owners(self, rows: np.ndarray) -> np.ndarray:
        return self._move(rows[self._order], self._wanted)

    def gradients_to_workers(self, rows: np.ndarray) -> np.ndarray:
        raise AssertionError("numbers have no gradient")

    def _move(self, rows: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Send rows to each rank, and return those received; `counts` has their number by sender and receiver."""
        rank = self._communicator.rank
        starts, ends = ranges(counts[rank].tolist()), ranges(counts[:, rank].tolist())
        result = np.empty((ends[-1].stop, *rows.shape[1:]), rows.dtype)
        sent = np.ascontiguousarray(rows)
        result[ends[rank]] = sent[starts[rank]]
        others = others_of(self._communicator)
        transfer(self._communicator, {r: sent[starts[r]] for r in others}, {r: result[ends[r]] for r in others})
        return result
