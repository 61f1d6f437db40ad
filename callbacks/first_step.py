"""What the first step of a `fit()` shows: that gradients were exchanged, and that workers have data of their own."""

import warnings

import keras
import numpy as np

from easyscale.errors import DesyncError, EasyScaleWarning

__all__ = ["FirstStep"]


class FirstStep:
    """Looks at the workers before and after the step. Each worker does.

    Args:
        model: The model.
        workers: The replication's view of all workers.
    """

    def __init__(self, model: keras.Model, workers: object):
        self._model, self._workers = model, workers
        self._exchanges, self._weights = workers.exchanges, self._fingerprint()

    def _fingerprint(self) -> np.ndarray:
        return self._workers.fingerprint(self._model.trainable_variables)

    def check(self) -> None:
        """Warn if all workers had the same batch.

        Raises:
            DesyncError: If the step has changed weights without an exchange.
        """
        communicator = self._workers.communicator
        exchanged = communicator.size == 1 or self._workers.exchanges > self._exchanges
        if not exchanged and (self._fingerprint() != self._weights).any():
            raise DesyncError(
                f"a step must exchange its gradients. Received: a first step of {type(self._model).__name__} that has "
                "changed weights without an exchange. Let `train_step` call `self.optimizer.apply(gradients, "
                "variables)`, and make each optimizer an attribute of the model"
            )
        if self._workers.same_batch() and communicator.rank == 0:
            warnings.warn(
                "each worker should have its own part of the data. Received: the same first batch on all "
                f"{communicator.size} workers. Divide the data: `x, y = easyscale.shard(x, y)`",
                EasyScaleWarning,
                stacklevel=2,
            )
