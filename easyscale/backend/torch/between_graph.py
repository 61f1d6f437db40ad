"""Between-graph replication: one process for each worker, which meet in an exchange. There is no graph."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import torch

from easyscale.backend.torch.whole_batch import BatchOfWorkers
from easyscale.errors import DesyncError
from easyscale.layout.specs import Variable
from easyscale.step import equality
from easyscale.step.interfaces import ApplyInStep, Gradient, Model
from easyscale.step.one_replica import OneReplica
from easyscale.step.shared import Shared

__all__ = ["BetweenGraph"]


class BetweenGraph(OneReplica):
    """The model of this process, which is one of many."""

    def batch(self, shared: Shared) -> BatchOfWorkers:
        return BatchOfWorkers(self.communicator, shared, self._step)

    def check_model(self, model: Model) -> None:
        """Raise `ValueError` if somebody else would average gradients as well."""
        if self.communicator.size == 1:
            return
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            raise ValueError(
                "`torch.distributed` must not be initialised where EasyScale averages gradients: Keras would average "
                f"them as well. Received: a process group of {torch.distributed.get_world_size()}. Call "
                "`torch.distributed.destroy_process_group()` before `fit()`, or leave `Distribute` out"
            )
        if (distribution := keras.distribution.distribution()) is not None:
            raise ValueError(
                "a model that several processes train must not have a `keras.distribution`. Received: "
                f"{type(distribution).__name__}, {self.communicator.size} processes. Call "
                "`keras.distribution.set_distribution(None)`"
            )

    def once(self, apply: ApplyInStep, gradients: Sequence[Gradient], variables: Sequence[Variable]) -> None:
        with torch.no_grad():  # as Keras's trainer; a loop of the user's own may not
            super().once(apply, gradients, variables)

    def start_in_step(self, variables: Sequence[Variable], state: Sequence[Variable]) -> None:
        """Let an optimizer's state be the chief's, and raise `DesyncError` unless the variables are: it is too late.

        The step's gradients have been made already. A graph would be traced before it computes any.
        """
        if self.communicator.size > 1:
            rows = self.communicator.all_gather_rows(equality.fingerprint(self._backend, variables))
            if other := [rank for rank, row in enumerate(rows) if (row != rows[0]).any()]:
                raise DesyncError(
                    "all ranks must begin a training loop of your own with the same weights on torch, where a step's "
                    f"gradients come before EasyScale. Received: other weights than rank 0's on rank {other[0]}. Call "
                    "`keras.utils.set_random_seed(1)` before the model is built, or `fit()` with `Distribute`"
                )
        self.start_equal(state)

    def rehearse(self, step: Callable[[Any], Any], iterator: Any) -> None:
        """Nothing is traced: Keras has built the model, and its metrics, from the shapes of a batch."""
