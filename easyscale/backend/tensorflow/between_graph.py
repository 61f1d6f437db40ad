"""Between-graph replication: one process and one graph per worker; workers communicate through an exchange."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from easyscale.backend.tensorflow import rows
from easyscale.backend.tensorflow.whole_batch import BatchOfWorkers
from easyscale.keras_internals import strategy_of
from easyscale.layout.specs import Variable
from easyscale.step.context import ApplyInStep, Gradient, Model
from easyscale.step.one_replica import OneReplica
from easyscale.step.shared import Shared

__all__ = ["BetweenGraph"]


class BetweenGraph(OneReplica):
    """The graph of this process, one of many."""

    def batch(self, shared: Shared) -> BatchOfWorkers:
        return BatchOfWorkers(self.communicator, shared, self._step)

    def check_model(self, model: Model) -> None:
        strategy = strategy_of(model)
        if hasattr(strategy, "cross_device"):
            raise ValueError(
                "a model that was built in in-graph replication's `easyscale.scope()` must be trained so. Received: "
                f"replication='between_graph', {type(model).__name__} '{model.name}'. Leave `replication` out"
            )
        if strategy is not None and self.communicator.size > 1:
            raise ValueError(
                "a model that several processes train must not be built in the scope of a `tf.distribute` strategy. "
                f"Received: {type(strategy).__name__}, {self.communicator.size} processes. Remove the scope: each "
                "process is a worker already. If each is to use several devices, leave --auto out, build the model in "
                "`with easyscale.scope():`, and start it by `easyscale launch --devices D`"
            )

    @tf.autograph.experimental.do_not_convert  # also for what it calls: plain Python, shared by all backends
    def once(self, apply: ApplyInStep, gradients: Sequence[Gradient], variables: Sequence[Variable]) -> None:
        if self.communicator.size > 1:
            gradients = [rows.whole_if_fixed(gradient) for gradient in gradients]
        super().once(apply, gradients, variables)

    def rehearse(self, step: Callable[[Any], Any], iterator: Any, variables: Sequence[Variable]) -> None:
        def absent_as_none(spec: tf.TypeSpec) -> tf.TypeSpec | None:
            return None if isinstance(spec, tf.OptionalSpec) else spec

        specs = tf.nest.map_structure(absent_as_none, iterator.element_spec)
        tf.function(step, autograph=False).get_concrete_function(specs)

    @tf.autograph.experimental.do_not_convert
    def start_equal(self, variables: Sequence[Variable], root: int = 0) -> None:
        with tf.init_scope():
            super().start_equal(variables, root)
