"""Between-graph replication: one process per worker; workers communicate in compiled steps through Python."""

from collections.abc import Callable, Sequence
from typing import Any

import keras

from easyscale.backend.eager_replica import EagerReplica
from easyscale.backend.jax.foreign_calls import why_not
from easyscale.backend.jax.graph import Graph
from easyscale.backend.jax.host_calls import in_users_trace, is_tracing
from easyscale.backend.jax.keras_steps import is_own
from easyscale.backend.jax.variables import set_values, values_of
from easyscale.backend.jax.whole_batch import BatchOfWorkers
from easyscale.layout.specs import Variable
from easyscale.step.context import ApplyInStep, Gradient
from easyscale.step.shared import Shared

__all__ = ["BetweenGraph"]


class BetweenGraph(EagerReplica):
    """The model of this process, one of many."""

    def batch(self, shared: Shared) -> BatchOfWorkers:
        return BatchOfWorkers(self.communicator, shared, self._step)

    def check_model(self, model: Any) -> None:
        """Raise `ValueError` if the model's step cannot be compiled, or something else would average gradients too."""
        super().check_model(model)
        reason = why_not()
        if self.communicator.size == 1 or reason is None:
            return
        for name in ("train_step", "test_step"):
            if is_own(model, name):
                raise ValueError(
                    f"a model that several processes train here must have Keras's own `{name}`: compiled code cannot "
                    f"call Python with {reason}. Received: {type(model).__name__}.{name}. Write `compute_loss` and "
                    "`compute_metrics` instead, or set KERAS_BACKEND=tensorflow"
                )
        if any(
            isinstance(value, keras.optimizers.LossScaleOptimizer)
            for value in _optimizers_in(getattr(model, "optimizer", None))
        ):
            raise ValueError(
                f"loss scaling needs one process here: compiled code cannot call Python with {reason}. "
                "Received: KERAS_BACKEND=jax and a LossScaleOptimizer. Use the policy 'mixed_bfloat16', or set "
                "KERAS_BACKEND=tensorflow"
            )

    def once(self, apply: ApplyInStep, gradients: Sequence[Gradient], variables: Sequence[Variable]) -> None:
        with in_users_trace(gradients):
            super().once(apply, gradients, variables)

    def start_in_step(self, variables: Sequence[Variable], state: Sequence[Variable]) -> None:
        """Set an optimizer's state to the chief's; raise `DesyncError` if the variables differ.

        In a step that a user compiles the state is an argument: setting it would do so in every step. It is compared.
        """
        if is_tracing():
            super().start_in_step([*variables, *state], ())
        else:
            super().start_in_step(variables, state)

    def rehearse(self, step: Callable[[Any], Any], iterator: Any, variables: Sequence[Variable]) -> None:
        """Trace a step on the next batch; if steps are not compiled, run it without the others and restore `variables`.

        Keras has built the model from a batch's shapes; but a worker without data left has to know what others exchange
        in a step.
        """
        if why_not() is None:
            Graph(step).traced(iterator.peek())
            return
        before = values_of(variables)
        try:
            with Shared.of(self.communicator, self._backend).call.rehearsing():
                step(iterator.peek())
        finally:
            set_values(variables, before)


def _optimizers_in(optimizer: Any) -> list:
    inner = getattr(optimizer, "inner_optimizer", None)
    return [optimizer] + ([] if inner is None else _optimizers_in(inner))
