"""The batch of a worker that steps alone: what it would know of all workers' batches, it takes from its own."""

from collections.abc import Sequence
from typing import Any

from easyscale.step.interfaces import StepContext, Tensor, WholeBatch

__all__ = ["OwnBatch"]


class OwnBatch(WholeBatch):
    """Stands for the batches of all workers in a step without the others: each has as much as this one.

    So a loss that is a sum is as large as in a step of all workers, and a mean that counts steps counts it as much.

    Args:
        batch: The `WholeBatch` of all workers.
        workers: Int. The number of workers.
    """

    def __init__(self, batch: WholeBatch, workers: int):
        self._batch, self._workers = batch, workers

    @property
    def size(self) -> int:
        return self._batch.size

    @property
    def context(self) -> StepContext:
        return self._batch.context

    def graph(self) -> Any:
        return self._batch.graph()

    def total(self, vector: Tensor, fingerprint: Tensor | None = None) -> Tensor:
        return vector * self._workers

    def moments(self, mean: Tensor, variance: Tensor, count: Any) -> tuple[Tensor, Tensor, Tensor]:
        return mean, variance, count

    def count_samples(self, tensors: Sequence[Any]) -> Tensor | float:
        return self._batch.count_samples(tensors)

    def beginnings(self, tensors: Sequence[Any]) -> list[Tensor]:
        return self._batch.beginnings(tensors)
