"""Between-graph replication: one process and one graph for each worker, which meet in an exchange."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import keras
import numpy as np
import tensorflow as tf

from easyscale import backend as backends
from easyscale.backend.tensorflow.whole_batch import BatchOfWorkers
from easyscale.communicator import Communicator
from easyscale.exchange import Exchange
from easyscale.keras_internals import strategy_of
from easyscale.layout.specs import Variable
from easyscale.step import equality
from easyscale.step.current_step import CurrentStep
from easyscale.step.interfaces import ApplyInStep, ExchangeArgument, Gradient, Model, ModelScope
from easyscale.step.shared import Shared

__all__ = ["BetweenGraph"]

T = TypeVar("T")


class BetweenGraph(ModelScope):
    """The replica of this process, which is one of many.

    Args:
        exchange: The connected `Exchange` between processes.
        step: `CurrentStep`.
        asked: String. The name of the exchange that was asked for. Defaults to `None`: none was.

    Attributes:
        communicator: The exchange's `Communicator`.
    """

    has_copies = False

    def __init__(self, exchange: Exchange, step: CurrentStep, asked: str | None = None):
        self.communicator: Communicator = exchange.communicator
        self._step = step

    def batch(self, shared: Shared) -> BatchOfWorkers:
        """Return the batches of all workers together."""
        return BatchOfWorkers(self.communicator, shared, self._step)

    @staticmethod
    def between_processes(exchange: ExchangeArgument) -> ExchangeArgument:
        """Return which exchange processes use if the user has said `exchange`."""
        return exchange

    @staticmethod
    def apart(function: Callable[[], T]) -> T:
        return function()

    @staticmethod
    def make_local(optimizer: keras.optimizers.Optimizer) -> None:
        """Make an optimizer one of a single device, whose variables may have copies on several."""

    @staticmethod
    def scope() -> contextlib.AbstractContextManager:
        """Return the context in which a model is built."""
        return contextlib.nullcontext()

    @staticmethod
    def stock_scope() -> contextlib.AbstractContextManager:
        """Return the context in which a model is built that is trained without EasyScale, for comparison."""
        return contextlib.nullcontext()

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
                f"Received: {type(strategy).__name__}, {self.communicator.size} processes. Build it in `with "
                "easyscale.scope():`, and start it by `easyscale launch --devices D` for several devices of a process"
            )

    def run(self, step: Callable[[Any], T], data: Any, samples: tf.Tensor, model: Model) -> T:
        return step(data)

    def weight_alone(self, weight: Any) -> Any:
        return weight

    def once(self, apply: ApplyInStep, gradients: Sequence[Gradient], variables: Sequence[Variable]) -> None:
        apply(self._step.context, list(gradients), list(variables))

    def on_one_device(self, apply: ApplyInStep) -> ApplyInStep:
        """Return a function that does what `apply` does for all replicas, outside of a step of theirs."""
        return apply

    def copies_of(self, variable: Variable) -> list[tuple[int, Variable]]:
        return [(self.communicator.membership.initial_ranks[self.communicator.rank], variable)]

    def rehearse(self, step: Callable[[Any], Any], iterator: tf.data.Iterator) -> None:
        def absent_as_none(spec: tf.TypeSpec) -> tf.TypeSpec | None:
            return None if isinstance(spec, tf.OptionalSpec) else spec

        specs = tf.nest.map_structure(absent_as_none, iterator.element_spec)
        tf.function(step, autograph=False).get_concrete_function(specs)

    # Replicas that must be equal

    @tf.autograph.experimental.do_not_convert
    def start_equal(self, variables: Sequence[Variable], root: int = 0) -> None:
        if self.communicator.size > 1:
            with tf.init_scope():
                equality.start_equal(self.communicator, backends.get(), variables, root)

    def check_equal(self, variables: Sequence[Variable], step: int) -> np.ndarray:
        return equality.check_equal(self.communicator, backends.get(), variables, step)
