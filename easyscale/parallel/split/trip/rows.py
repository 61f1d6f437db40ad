"""Some columns of the rows to each owner; summands of the results back."""

import numpy as np

from easyscale.parallel.split.trip.moves import gather, join_columns, part_columns, sum_rows
from easyscale.parallel.split.trip.trip import Trip

__all__ = ["Rows"]


class Rows(Trip):
    """Send some columns of all workers' rows to each owner, which computes a summand of the results.

        worker 0  [x0 | x0] ---+---> owner 0  [x0; x1][:, :c] w[:c]  --+---> worker 0  y0 + y0
                                X                                       X
        worker 1  [x1 | x1] ---+---> owner 1  [x0; x1][:, c:] w[c:]  --+---> worker 1  y1 + y1

    The reverse of `Columns`: a rank sends `2 (P - 1) (a / P + b)` bytes in a step, in `4 (P - 1)` messages; without the
    gradients of the rows `(P - 1) a / P` less.
    """

    @staticmethod
    def cost(into: float, out: float, ranks: int, has_gradient: bool = True) -> float:
        return (ranks - 1) * ((1 + has_gradient) * into / ranks + 2 * out)

    def width_at_owner(self, width: int) -> int:
        rank = self._communicator.rank
        return self._bounds[rank + 1] - self._bounds[rank]

    def width_at_worker(self, width: int) -> int:
        return width

    def to_owners(self, rows: np.ndarray) -> np.ndarray:
        self._count(rows)
        return part_columns(self._communicator, rows, self._counts, self._bounds)

    def to_workers(self, rows: np.ndarray) -> np.ndarray:
        return sum_rows(self._communicator, rows, self._counts)

    def gradients_to_owners(self, rows: np.ndarray) -> np.ndarray:
        return gather(self._communicator, rows, self._counts)

    def gradients_to_workers(self, rows: np.ndarray) -> np.ndarray:
        return join_columns(self._communicator, rows, self._counts, self._bounds)
