"""A part of the whole batch, as losses and metrics see it, without communication between processes."""

from collections.abc import Sequence
from typing import Any

import keras

from easyscale.step.context import StepContext
from easyscale.step.whole_batch import WholeBatch

__all__ = ["PartOfBatch"]


class PartOfBatch(WholeBatch):
    """A part of the batch of all pipelines; subclasses define `total`. Normalization uses the part's own moments.

    Args:
        batch: The `WholeBatch` of the replication between pipelines.
        samples: Scalar tensor. The samples of the part.
    """

    def __init__(self, batch: WholeBatch, samples: Any):
        self._batch, self._samples = batch, samples

    @property
    def size(self) -> int:
        return max(2, self._batch.size)  # there are other parts

    @property
    def context(self) -> StepContext:
        return StepContext(self._samples)

    def graph(self) -> Any:
        return self._batch.graph()

    def moments(self, mean: Any, variance: Any, count: Any) -> tuple[Any, Any, Any]:
        return mean, variance, keras.ops.convert_to_tensor(count)

    def count_samples(self, tensors: Sequence[Any]) -> Any:
        return self._samples

    def beginnings(self, tensors: Sequence[Any]) -> list:
        return []
