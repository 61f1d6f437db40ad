"""An optimizer that sums gradients up over several steps: what each worker has summed up, and all of them together."""

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
    """Return the optimizer without any loss scaling around it."""
    return optimizer.inner_optimizer if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) else optimizer


def accumulation_of(optimizer: keras.optimizers.Optimizer, variables: list) -> Accumulation | None:
    """Return what the optimizer has accumulated of `variables`, or `None` if it applies every gradient."""
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
    """Gradients that wait for the optimizer's next update, in the midst of an accumulation.

    During a `fit()` each worker has summed up its own, and one process would have the sum over workers. Before and
    after `fit()`, and in every file, all have that sum.

    Args:
        optimizer: The optimizer inside the `DistributedOptimizer`. It is built.
        replication: `Gradients`: all workers, as one of them sees them.
    """

    def __init__(self, optimizer: keras.optimizers.Optimizer, replication: Gradients):
        self._optimizer, self._replication = optimizer, replication
        self.active = False
        self._collect_on_all = replication.on_state(self._collect)

    @property
    def _variables(self) -> list:
        """The sums; none if there is nothing in them, which is so on all workers alike."""
        inner = unscaled(self._optimizer)
        if not int(counter_of(inner)) % inner.gradient_accumulation_steps:
            return []
        return [variable for variable in accumulated_gradients(inner) if variable is not None]

    def begin(self) -> None:
        """Let the chief go on with what all have, and the others with nothing."""
        if not self._replication.communicator.is_chief:
            for variable in self._variables:
                variable.assign(np.zeros_like(value_of(variable)))
        self.active = True

    def end(self) -> None:
        """Give all workers the sum. All must call this."""
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
        """Return the values of the optimizer's variables, with the sums in their places.

        Args:
            together: Bool. Whether all workers call this. If not, one does alone, whatever the others do in `fit()`.
        """
        wholes = self._collect() if together else self._collect_on_all()
        sums = {id(variable): whole for variable, whole in zip(self._variables, wholes, strict=True)}
        return [sums.get(id(variable), view_of(variable)) for variable in all_variables(self._optimizer)]
