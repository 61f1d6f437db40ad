"""Gradients that an optimizer sums over several steps: each worker's own sums, and their total."""

import keras
import numpy as np

from easyscale.backend import value_of, view_of
from easyscale.exchange.on_gpus import for_host
from easyscale.keras_internals import accumulated_gradients, counter_of
from easyscale.optimizers.nested import all_variables
from easyscale.step.context import Accumulation
from easyscale.step.gradients import Gradients

__all__ = ["AccumulatedGradients", "accumulation_of", "unscaled"]


def unscaled(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """Return the optimizer inside of any loss scaling."""
    return optimizer.inner_optimizer if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) else optimizer


def accumulation_of(optimizer: keras.optimizers.Optimizer, variables: list) -> Accumulation | None:
    """Return the optimizer's accumulation for `variables`, or `None` if it applies every gradient."""
    may_overflow = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    dynamic_scale = optimizer.dynamic_scale if may_overflow else 1.0
    inner = unscaled(optimizer)
    steps = inner.gradient_accumulation_steps
    if not steps:
        return None
    scale = keras.ops.convert_to_tensor(dynamic_scale) * (inner.loss_scale_factor or 1.0)
    sums = accumulated_gradients(inner, variables)
    due = keras.ops.equal((counter_of(inner) + 1) % steps, 0)  # `iterations` counts updates
    return None if any(total is None for total in sums) else Accumulation(due, sums, may_overflow, scale)


class AccumulatedGradients:
    """Gradients that wait for the optimizer's next update, in the middle of an accumulation.

    During a `fit()` each worker has its own sums; a single process would have the sum over workers. Before and after
    `fit()`, and in every file, all workers have that sum.

    Args:
        optimizer: The optimizer inside the `DistributedOptimizer`. It is built.
        replication: `Gradients`.
    """

    def __init__(self, optimizer: keras.optimizers.Optimizer, replication: Gradients):
        self._optimizer, self._replication = optimizer, replication
        self.active = False
        self._collect_on_all = replication.on_state(self._collect)

    @property
    def _variables(self) -> list:
        """The sums; empty if nothing is accumulated, which is the same on all workers."""
        inner = unscaled(self._optimizer)
        if not int(counter_of(inner)) % inner.gradient_accumulation_steps:
            return []
        return [variable for variable in accumulated_gradients(inner) if variable is not None]

    def begin(self) -> None:
        """Keep the common sums on the chief, and clear those of the others."""
        if not self._replication.communicator.is_chief:
            for variable in self._variables:
                variable.assign(np.zeros_like(value_of(variable)))
        self.active = True

    def end(self) -> None:
        """Set the sums of all workers to the total. All must call this."""
        for variable, whole in zip(self._variables, self._collect(), strict=True):
            variable.assign(whole)
        self.active = False

    def _collect(self) -> list[np.ndarray]:
        wholes = []
        for variable in self._variables:
            own = value_of(variable)
            buffer = own.astype(np.promote_types(own.dtype, "float32")).reshape(-1)
            for_host(self._replication.exchange).allreduce(buffer)
            wholes.append(buffer.reshape(own.shape).astype(own.dtype))
        return wholes

    def values(self, together: bool) -> list[np.ndarray]:
        """Return the values of the optimizer's variables, with the totals in place of the sums.

        Args:
            together: Bool. Whether all workers call this. If not, one calls it alone, whatever the others do in
                `fit()`.
        """
        wholes = self._collect() if together else self._collect_on_all()
        sums = {id(variable): whole for variable, whole in zip(self._variables, wholes, strict=True)}
        return [sums.get(id(variable), view_of(variable)) for variable in all_variables(self._optimizer)]
