"""An update with the optimizer at the servers, to which workers push gradients independently."""

import functools
from collections.abc import Callable

import keras

from easyscale import backend as backends
from easyscale.step.context import StepContext
from easyscale.step.gradients import Gradients
from easyscale.step.served import Served
from easyscale.step.shared import Shared
from easyscale.update.divided import DividedUpdate
from easyscale.update.element_wise import is_element_wise, why_not_elsewhere
from easyscale.update.served_part import ServedPart

__all__ = ["ServedUpdate"]


class ServedUpdate(DividedUpdate):
    """Lets servers apply each worker's gradients as they arrive, during a `fit()`.

        g_r -> servers                                                  push
        w_part, state_part = optimizer(w_part, state_part, g_r)         at the owner of the part
        w <- servers                                                    pull

    The weights of a worker are those of its last pull. At the end of an epoch all ranks have the same.

    Args:
        optimizer: The optimizer inside the `DistributedOptimizer`.
        variables: The variables that it trains.
        connect: Function that returns the `Gradients`.

    Attributes:
        servers: The `Served`.
    """

    needs = "an optimizer that others can use for a worker"
    is_synchronous = False

    def __init__(
        self,
        optimizer: keras.optimizers.Optimizer,
        variables: list[keras.Variable],
        connect: Callable[[], Gradients],
    ):
        whole = not is_element_wise(optimizer)  # it needs whole weights: each has a single owner
        super().__init__(optimizer, variables, connect, whole)
        update = functools.partial(self._replication.update, self._twin.optimizer.apply, compiles=self._compiles)
        part = ServedPart(self._twin, whole, self._variables, self._shards, update)
        shared = Shared.of(self._replication.communicator, backends.get())
        self.servers = Served(self._replication.exchange, shared, self._shards, part)

    @classmethod
    def why_not(cls, optimizer: keras.optimizers.Optimizer, variables: list[keras.Variable]) -> str | None:
        return why_not_elsewhere(optimizer, variables)

    def begin(self) -> None:
        if self.servers.in_epoch:
            raise ValueError(
                "`fit()` must not be called again when servers were left in the middle of an epoch. "
                "Received: a `fit()` that was interrupted before. Start the script anew, with `BackupAndRestore`"
            )
        super().begin()

    def apply(self, context: StepContext, gradients: list, variables: list[keras.Variable]) -> None:
        """Push the gradients of this worker, and pull the weights."""
        numbers = [self._numbers[id(variable)] for variable in variables]
        present = {
            number: gradient for number, gradient in zip(numbers, gradients, strict=True) if gradient is not None
        }
        dense = list(map(keras.ops.convert_to_tensor, present.values()))
        clipped = self._twin.clip(
            dense, backends.get().sums_of_squares
        )  # every push is a step, so norms are the worker's
        by_number = dict(zip(present, clipped, strict=True))
        self.servers.step(by_number, self._variables, context.weight, self._optimizer.learning_rate)

    def take_weights(self) -> None:
        """Copy the servers' weights to all ranks, after an epoch. All ranks must call this."""
        for variable, whole in zip(self._variables, self.servers.collect(), strict=True):
            variable.assign(whole.reshape(variable.shape))
        steps = int(max(self._replication.communicator.all_gather_object(int(self._optimizer.iterations))))
        self._optimizer.iterations.assign(steps)  # counted by the servers

    def save_own_variables(self, store: dict) -> None:
        if self.servers.in_epoch:
            raise ValueError(
                "the optimizer's state can be saved at the end of an epoch when servers do not wait for all workers. "
                "Received: a callback that saves between steps. Use `save_freq='epoch'`"
            )
        super().save_own_variables(store)
