"""The batches of all workers, each in a process of its own: what all backends have in common of them."""

import numpy as np

from easyscale.communicator import Communicator
from easyscale.layout.specs import Spec
from easyscale.step.current_step import CurrentStep
from easyscale.step.interfaces import StepContext, Tensor, WholeBatch
from easyscale.step.shared import Shared

__all__ = ["COMPARED", "BatchOfProcesses"]

COMPARED = 4096  # elements of a tensor, by which batches are known to be the same


class BatchOfProcesses(WholeBatch):
    """The batches of all workers together, which layers and losses may ask for inside a step.

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
        """Return the sum of all workers' float64 `vector`, in a step; see `total`."""
        shared, spec = self._shared, Spec(tuple(vector.shape), np.dtype("float64"))

        def summed(local: np.ndarray, *own: np.ndarray) -> list[np.ndarray]:
            rows = shared.gather_rows(np.concatenate([local, *(mark.reshape(1) for mark in own)]))
            counts_once = own and shared.may_be_whole and (rows == rows[0]).all()
            return [(rows[:1] if counts_once else rows)[:, : local.size].sum(axis=0)]

        return shared.call(summed, [vector] if fingerprint is None else [vector, fingerprint], [spec])[0]
