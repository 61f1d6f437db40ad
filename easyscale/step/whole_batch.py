"""The batches of all workers as one, for layers, losses and metrics inside a step."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from easyscale.communicator import Communicator
from easyscale.layout.specs import Spec
from easyscale.step.context import CurrentStep, StepContext, Tensor
from easyscale.step.shared import Shared

__all__ = ["COMPARED", "BatchOfProcesses", "OwnBatch", "WholeBatch"]

COMPARED = 4096  # elements of each tensor by which batches are compared


class WholeBatch(Protocol):
    """The batches of all workers as one, for layers, losses and metrics inside a step.

    Outside of a `fit()` or `evaluate()` of all workers, and with one worker, the whole batch is the worker's own.
    """

    @property
    def size(self) -> int:
        """The number of workers."""

    @property
    def context(self) -> StepContext:
        """The context of the step that is being traced."""

    def graph(self) -> Any:
        """Return the graph that is being traced; `None` if none is."""

    def total(self, vector: Tensor, fingerprint: Tensor | None = None) -> Tensor:
        """Return the sum of all workers' `vector`, in the graph, without a gradient.

        Args:
            vector: Vector. This worker's numbers.
            fingerprint: Scalar. For an evaluation in which each worker may have all data: if all workers have the same
                vector and fingerprint, they have the same data, which counts once. Defaults to `None`: each counts.
        """

    def moments(self, mean: Tensor, variance: Tensor, count: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Return the mean, variance and count of all workers' data, in the graph and with gradients.

        Args:
            mean: Vector. The mean of this worker's data, for each channel.
            variance: Vector. The variance.
            count: Scalar. The number of values per channel.

        Reference: Chan, Golub, LeVeque, 1979 for the moments of a union of samples.
        """

    def count_samples(self, tensors: Sequence[Any]) -> Tensor | float:
        """Return the number of samples in a batch, given as the list of its tensors, some of which may be `None`."""

    def beginnings(self, tensors: Sequence[Any]) -> list[Tensor]:
        """Return the first elements of each numeric tensor in a batch, at most 4096, as vectors in the graph."""


class BatchOfProcesses(WholeBatch):
    """The batches of all workers as one, by communication between processes.

    Args:
        communicator: The `Communicator`.
        shared: Its `Shared`.
        step: `CurrentStep`. Its weight is the number of samples of this worker's batch.
    """

    def __init__(self, communicator: Communicator, shared: Shared, step: CurrentStep):
        self._communicator, self._shared, self._step = communicator, shared, step

    @property
    def size(self) -> int:
        return self._communicator.size

    @property
    def context(self) -> StepContext:
        return self._step.context

    def _sum(self, vector: Tensor, fingerprint: Tensor | None = None) -> Tensor:
        """Return the sum of all workers' `vector` in float64, in a step; see `total`."""
        shared, spec = self._shared, Spec(tuple(vector.shape), np.dtype("float64"))

        def summed(local: np.ndarray, *own: np.ndarray) -> list[np.ndarray]:
            row = np.concatenate([local, *(mark.reshape(1) for mark in own)], dtype="float64")  # as a worker that joins
            rows = shared.gather_rows(row)
            counts_once = own and shared.may_be_whole and (rows == rows[0]).all()
            return [(rows[:1] if counts_once else rows)[:, : local.size].sum(axis=0)]

        return shared.call(summed, [vector] if fingerprint is None else [vector, fingerprint], [spec])[0]


class OwnBatch(WholeBatch):
    """Stand-in for the whole batch in a step without the other workers, as if each had this worker's batch.

    So a loss that is a sum is as large as in a step of all workers, and has the same weight in a mean over steps.

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
