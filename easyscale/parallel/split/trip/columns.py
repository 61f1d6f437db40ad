"""All rows to all owners; some columns of the results back."""

import numpy as np

from easyscale.parallel.split.trip.moves import gather, join_columns, part_columns, sum_rows
from easyscale.parallel.split.trip.trip import Trip

__all__ = ["Columns"]


class Columns(Trip):
    """Send the rows of all workers to every owner, which computes some columns of the results.

        worker 0  x0 ---+---> owner 0  [x0; x1] w[:, :c]  --+---> worker 0  [y0 | y0]
                         X                                   X
        worker 1  x1 ---+---> owner 1  [x0; x1] w[:, c:]  --+---> worker 1  [y1 | y1]

    With `P` ranks, rows of `a` bytes in and `b` bytes out on each worker, a rank sends in a step

        (P - 1) a          the rows, to each other owner
        (P - 1) b / P      some columns of the results, to each other worker
        (P - 1) b / P      their gradients
        (P - 1) a          the gradients of the rows, to each worker its own, which sums them

    in `4 (P - 1)` messages: less than the `2 (P - 1) / P W` of `W` bytes of weights, if `P a + b < W`. Gradients of
    rows that nothing before the layer needs, as in the first layer, are not sent.

    Reference: Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014.
    """

    @staticmethod
    def cost(into: float, out: float, ranks: int, has_gradient: bool = True) -> float:
        return (ranks - 1) * ((1 + has_gradient) * into + 2 * out / ranks)

    def width_at_owner(self, width: int) -> int:
        return width

    def width_at_worker(self, width: int) -> int:
        return self._bounds[-1]

    def to_owners(self, rows: np.ndarray) -> np.ndarray:
        self._count(rows)
        return gather(self._communicator, rows, self._counts)

    def to_workers(self, rows: np.ndarray) -> np.ndarray:
        return join_columns(self._communicator, rows, self._counts, self._bounds)

    def gradients_to_owners(self, rows: np.ndarray) -> np.ndarray:
        return part_columns(self._communicator, rows, self._counts, self._bounds)

    def gradients_to_workers(self, rows: np.ndarray) -> np.ndarray:
        return sum_rows(self._communicator, rows, self._counts)
