"""Between-graph replication: one process per worker; workers communicate through an exchange. There is no graph."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from easyscale.backend.eager_replica import EagerReplica
from easyscale.backend.torch import randomness
from easyscale.backend.torch.variables import native_of, view_of
from easyscale.backend.torch.whole_batch import BatchOfWorkers
from easyscale.layout.specs import Variable
from easyscale.step.context import ApplyInStep, Gradient, Model
from easyscale.step.shared import Shared

__all__ = ["BetweenGraph"]


class BetweenGraph(EagerReplica):
    """The model of this process, one of many."""

    def batch(self, shared: Shared) -> BatchOfWorkers:
        return BatchOfWorkers(self.communicator, shared, self._step)

    def check_model(self, model: Model) -> None:
        """Raise `ValueError` if something else would average gradients as well."""
        if self.communicator.size > 1 and torch.distributed.is_available() and torch.distributed.is_initialized():
            raise ValueError(
                "`torch.distributed` must not be initialised where EasyScale averages gradients: Keras would average "
                f"them as well. Received: a process group of {torch.distributed.get_world_size()}. Call "
                "`torch.distributed.destroy_process_group()` before `fit()`, or leave `Distribute` out"
            )
        super().check_model(model)

    def once(self, apply: ApplyInStep, gradients: Sequence[Gradient], variables: Sequence[Variable]) -> None:
        with torch.no_grad():  # as in Keras's trainer; a custom training loop may not do so
            super().once(apply, gradients, variables)

    def rehearse(self, step: Callable[[Any], Any], iterator: Any, variables: Sequence[Variable]) -> None:
        batch = iterator.peek()
        state, before = randomness.states(), [(variable, view_of(variable)) for variable in variables]
        try:
            with Shared.of(self.communicator, self._backend).call.rehearsing():
                step(batch)
        finally:
            randomness.set_states(state)
            for variable, value in before:
                variable.assign(value)
                native_of(variable).grad = None
