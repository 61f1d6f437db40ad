"""Between-graph replication: one process per worker; workers communicate outside of compiled code."""

from collections.abc import Callable, Sequence
from typing import Any

import keras

from easyscale.backend.eager_replica import EagerReplica
from easyscale.backend.jax.variables import set_values, values_of
from easyscale.backend.jax.whole_batch import BatchOfWorkers
from easyscale.layout.specs import Variable
from easyscale.step.shared import Shared

__all__ = ["BetweenGraph"]


class BetweenGraph(EagerReplica):
    """The model of this process, one of many."""

    def batch(self, shared: Shared) -> BatchOfWorkers:
        return BatchOfWorkers(self.communicator, shared, self._step)

    def check_model(self, model: Any) -> None:
        """Raise `ValueError` if the model's step cannot be split, or something else would average gradients as well."""
        super().check_model(model)
        if self.communicator.size == 1:
            return
        for name in ("train_step", "test_step"):
            if getattr(type(model), name) is not getattr(keras.Model, name):
                raise ValueError(
                    f"a model that several processes train on JAX must have Keras's own `{name}`: it is compiled as "
                    f"one, and workers have to meet within it. Received: {type(model).__name__}.{name}. Write "
                    "`compute_loss` and `compute_metrics` instead, or set KERAS_BACKEND=tensorflow"
                )
        if any(
            isinstance(value, keras.optimizers.LossScaleOptimizer)
            for value in _optimizers_in(getattr(model, "optimizer", None))
        ):
            raise ValueError(
                "loss scaling needs another backend of Keras where several processes train. Received: "
                "KERAS_BACKEND=jax and a LossScaleOptimizer. Use the policy 'mixed_bfloat16', or set "
                "KERAS_BACKEND=tensorflow"
            )

    def rehearse(self, step: Callable[[Any], Any], iterator: Any, variables: Sequence[Variable]) -> None:
        """Run a step on the next batch, without the others, and restore the values of `variables`.

        Keras has built the model from a batch's shapes; but a worker without data left has to know what others exchange
        in a step.
        """
        before = values_of(variables)
        try:
            with Shared.of(self.communicator, self._backend).call.rehearsing():
                step(iterator.peek())
        finally:
            set_values(variables, before)


def _optimizers_in(optimizer: Any) -> list:
    inner = getattr(optimizer, "inner_optimizer", None)
    return [optimizer] + ([] if inner is None else _optimizers_in(inner))
