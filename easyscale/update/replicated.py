"""An update in which every worker updates all weights."""

import keras
import numpy as np

from easyscale import backend as backends
from easyscale.backend import view_of
from easyscale.checkpoint.snapshot_memory import SnapshotMemory
from easyscale.layout.specs import Spec, specs_of
from easyscale.optimizers.nested import all_variables
from easyscale.step.context import StepContext
from easyscale.update.accumulated import AccumulatedGradients, accumulation_of, unscaled
from easyscale.update.base import Update
from easyscale.update.element_wise import is_of_keras

__all__ = ["ReplicatedUpdate"]


class ReplicatedUpdate(Update):
    """Lets each worker update all weights, with the mean of all workers' gradients.

        g = sum_r(n_r g_r) / sum_r(n_r)                                 reduce, gather
        w, state = optimizer(w, state, g)                               update

    The state is the same on all workers, and in the optimizer. Gradients that the optimizer sums over several steps are
    an exception: during a `fit()` they are each worker's own, and exchanged together. Outside of it they are exchanged
    in every step.

    Args:
        optimizer: The optimizer inside the `DistributedOptimizer`.
        variables: Not needed.
        connect: Function that returns the `Gradients`. Called when that is needed.
    """

    name = "replicated"
    _accumulated: AccumulatedGradients | None = None

    def begin(self) -> None:
        if getattr(unscaled(self._optimizer), "gradient_accumulation_steps", None):
            if self._accumulated is None:
                self._accumulated = AccumulatedGradients(self._optimizer, self._connect())
            self._accumulated.begin()
        self.active = True

    def apply(self, context: StepContext, gradients: list, variables: list[keras.Variable]) -> None:
        replication, optimizer = self._connect(), self._optimizer
        accumulation = None if self._apart is None else accumulation_of(optimizer, variables)
        means = replication.reduce(context, gradients, variables, accumulation)
        if context.adjust is not None:
            means = context.adjust(means, backends.get().sums_of_squares)
        replication.update(optimizer.apply, means, variables, is_of_keras(optimizer))

    def end(self) -> None:
        if self._apart is not None:
            self._apart.end()
        self.active = False

    def abandon(self, lost: bool = True) -> None:
        if self._accumulated is not None:
            self._accumulated.active = False
        self.active = False

    @property
    def _apart(self) -> AccumulatedGradients | None:
        """The accumulated gradients, if each worker has its own sums now."""
        return self._accumulated if self._accumulated is not None and self._accumulated.active else None

    def save_own_variables(self, store: dict) -> None:
        if self._apart is not None:
            listed = range(len(self._optimizer.variables))
            for index, value in zip(listed, self._apart.values(together=False), strict=False):
                store[str(index)] = value
        else:
            self._optimizer.save_own_variables(store)

    def load_own_variables(self, store: dict) -> None:
        self._optimizer.load_own_variables(store)
        if self._apart is not None:
            self._apart.begin()

    def state_specs(self) -> list[Spec]:
        return specs_of(self.variables)

    def collect(self, memory: SnapshotMemory) -> list[np.ndarray]:
        if self._apart is not None:
            values = self._apart.values(together=True)
        else:
            values = [view_of(variable) for variable in self.variables]
        return [memory.copy(value) for value in values] if self._connect().communicator.is_chief else []

    def load(self, values: list[np.ndarray]) -> None:
        for variable, value in zip(self.variables, values, strict=True):
            variable.assign(value)
        if self._apart is not None:
            self._apart.begin()

    @property
    def variables(self) -> list[keras.Variable]:
        return all_variables(self._optimizer)
