"""Checks of the first step of a `fit()`: gradients were exchanged, and workers have different data."""

import warnings

import keras
import numpy as np

from easyscale import backend as backends
from easyscale import called
from easyscale.errors import DesyncError, EasyScaleWarning
from easyscale.replication.replication import Replication
from easyscale.settings import Settings
from easyscale.step import equality
from easyscale.training.keras_fit import KERAS_BATCH, locals_of_fit
from easyscale.training.rounds import Rounds

__all__ = ["FirstStep"]


class FirstStep:
    """Checks that each worker makes before and after the step.

    Args:
        model: The model.
        replication: The `Replication`, a worker's view of all workers.
        rounds: The `Rounds`.
        is_verbose: Bool. Whether this worker prints the size of a step. Defaults to `False`.
    """

    def __init__(self, model: keras.Model, replication: Replication, rounds: Rounds, is_verbose: bool = False):
        self._model, self._replication, self._rounds, self._is_verbose = model, replication, rounds, is_verbose
        self._exchanges, self._weights = replication.steps.exchanges, self._fingerprint()

    def _fingerprint(self) -> np.ndarray:
        return equality.fingerprint(backends.get(), self._model.trainable_variables)

    @property
    def _has_moved(self) -> bool:
        return bool((self._fingerprint() != self._weights).any())

    def check(self) -> None:
        """Print the size of a step if it may not be the intended one.

        Raises:
            DesyncError: If the step has changed weights without an exchange.
        """
        communicator = self._replication.communicator
        exchanged = communicator.size == 1 or self._replication.steps.exchanges > self._exchanges
        exchanges = exchanged or (not self._rounds.exchanges and self._rounds.has_stepped)  # they do in the next round
        if not exchanges and self._has_moved:
            raise DesyncError(
                f"a step must exchange its gradients. Received: a first step of {type(self._model).__name__} that has "
                "changed weights without an exchange. Let `train_step` call `self.optimizer.apply(gradients, "
                "variables)`, and make each optimizer an attribute of the model"
            )
        if self._is_verbose and communicator.workers > 1:
            self._say_batch(communicator.workers)

    def compare_batches(self) -> None:
        """Warn, after the first exchange, if all workers had the same data."""
        communicator = self._replication.communicator
        # A round compares weights: they are equal after training on the same data, or if none has moved.
        same = self._replication.steps.same_batch() and (self._rounds.exchanges or self._has_moved)
        if same and communicator.is_chief and Settings.read().auto is None:  # `--auto` reports what it does not divide
            warnings.warn(
                "each process should have its own part of the data. Received: the same first batch in all "
                f"{communicator.workers} processes. Divide the data: `x, y = easyscale.shard(x, y)`",
                EasyScaleWarning,
                stacklevel=2,
            )

    def _say_batch(self, processes: int) -> None:
        """Print the size of a step if the script divides arrays but calls nothing that would account for it."""
        given = locals_of_fit(self._model)
        is_known = hasattr(given.get("x"), "shape") and not {"local_batch", "scaled_lr"} & called.names
        if is_known and "shard" in called.names:
            batch = given["batch_size"] or KERAS_BATCH
            print(
                f"EasyScale: each step has {batch * processes} samples, {batch} of each of {processes} processes. "
                f"`batch_size=easyscale.local_batch({batch})` would make it {batch} of all together",
                flush=True,
            )
            called.names.discard("shard")  # once
