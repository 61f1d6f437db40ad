"""All inputs to all owners; summands of the results back."""

import numpy as np

from easyscale.parallel.split.trip.moves import gather, sum_rows
from easyscale.parallel.split.trip.trip import Trip

__all__ = ["Summands"]


class Summands(Trip):
    """Send the inputs of all workers to every owner, which computes a summand of each result.

        worker 0  x0 ---+---> owner 0  f0([x0; x1])  --+---> worker 0  y0 + y0
                         X                              X
        worker 1  x1 ---+---> owner 1  f1([x0; x1])  --+---> worker 1  y1 + y1

    Intermediate values between the inputs and the summands, such as heads of attention, stay at their owner. With
    inputs of `a` bytes and results of `b` on each worker, a rank sends in a step

        (P - 1) a          the inputs, to each other owner
        (P - 1) b          summands of the results, to each other worker its own
        (P - 1) b          the gradients of the results, to each other owner
        (P - 1) a          the gradients of the inputs, to each worker its own, which sums them

    in `4 (P - 1)` messages, if the inputs are one array; `2 (P - 1)` more for each further one. The shapes of arrays
    may differ between steps, but not between workers.

    Reference: Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism",
    2019, whose ranks have the whole batch: there inputs are not sent to owners, and every rank keeps all results.
    """

    @staticmethod
    def cost(into: float, out: float, ranks: int, has_gradient: bool = True) -> float:
        return (ranks - 1) * ((1 + has_gradient) * into + 2 * out)

    def width_at_owner(self, width: int) -> int:
        return width

    def width_at_worker(self, width: int) -> int:
        return width

    def to_owners(self, rows: np.ndarray) -> np.ndarray:
        shapes = self._communicator.all_gather_rows(np.array(rows.shape))
        self._set_counts(shapes[:, 0].tolist())
        tails = shapes[shapes[:, 0] > 0, 1:]
        if len(np.unique(tails, axis=0)) > 1:
            raise ValueError(
                "workers must give a layer whose owners have all inputs arrays of the same shape in a step, beside the "
                f"number of samples. Received: {[tuple(shape) for shape in shapes.tolist()]} on ranks 0 to "
                f"{len(shapes) - 1}. Pad all batches to one length"
            )
        if not len(rows) and len(tails):  # only ranks with samples know the shape
            rows = np.empty((0, *tails[0].tolist()), rows.dtype)
        return gather(self._communicator, rows, self._counts)

    def to_workers(self, rows: np.ndarray) -> np.ndarray:
        return sum_rows(self._communicator, rows, self._counts)

    def gradients_to_owners(self, rows: np.ndarray) -> np.ndarray:
        return gather(self._communicator, rows, self._counts)

    def gradients_to_workers(self, rows: np.ndarray) -> np.ndarray:
        return sum_rows(self._communicator, rows, self._counts)
