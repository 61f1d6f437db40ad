"""In-graph replication: one process whose graph holds a replica of the model on each of several devices.

The replicas' gradients are summed inside the process first. The rest happens once for all replicas, outside of
TensorFlow's strategy: the exchange between processes, if there are several, and the update, for which Keras sees a
single-device optimizer. So clipping, loss scaling and accumulation work as on a single device. The update writes to
the first device's copies of the weights, from which all others are updated.
"""

import concurrent.futures
import contextlib
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import keras
import numpy as np
import tensorflow as tf

from easyscale import exchange as exchanges
from easyscale.backend.base import Backend
from easyscale.backend.tensorflow.between_graph import BetweenGraph
from easyscale.backend.tensorflow.in_graph import devices
from easyscale.backend.tensorflow.in_graph import strategy as strategies
from easyscale.backend.tensorflow.in_graph.batch_of_replicas import BatchOfReplicas
from easyscale.backend.tensorflow.in_graph.equal_copies import check_equal_copies
from easyscale.backend.tensorflow.in_graph.local_optimizer import make_local
from easyscale.backend.tensorflow.in_graph.losses_of_replicas import LossesOfReplicas
from easyscale.backend.tensorflow.internals import outside
from easyscale.backend.tensorflow.rows import whole_if_fixed
from easyscale.backend.tensorflow.whole_batch import BatchOfWorkers
from easyscale.exchange import Exchange
from easyscale.keras_internals import hold_losses, strategy_of
from easyscale.layout.specs import Variable
from easyscale.settings import Settings
from easyscale.step.context import ApplyInStep, CurrentStep, ExchangeArgument, Gradient, Model, StepContext
from easyscale.step.shared import Shared

__all__ = ["InGraph"]

T = TypeVar("T")


class InGraph(BetweenGraph):
    """The devices of one process as workers, together with the other processes.

    Args:
        exchange: A connected `Exchange` between processes. The one between devices has the same name.
        step: `CurrentStep`.
        backend: The `Backend`.
        asked: String. See `OneReplica`. Defaults to `None`.

    Attributes:
        strategy: The `Replicas`.
        devices: The `DeviceExchange` between them.
    """

    has_copies = True

    def __init__(self, exchange: Exchange, step: CurrentStep, backend: Backend, asked: str | None = None):
        if exchange.communicator.membership.is_elastic:
            raise ValueError(
                "--elastic is for workers that are processes of their own. Received: replication='in_graph'. Use "
                "'between_graph'"
            )
        self.strategy = strategies.get()
        alone = exchange.communicator.size == 1
        self.devices = strategies.exchange_for(asked, self.strategy.devices, exchange, strict=alone)
        self.strategy.cross_device.exchange = self.devices
        super().__init__(exchange, step, backend, asked)

    def batch(self, shared: Shared) -> BatchOfWorkers:
        return BatchOfReplicas(self.communicator, shared, self._step, self.strategy)

    @staticmethod
    def between_processes(exchange: ExchangeArgument) -> ExchangeArgument:
        name = exchanges.asked(exchange)
        only_in_graph = name in devices.available() and name not in exchanges.available()
        return "auto" if only_in_graph else exchange

    @staticmethod
    def apart(function: Callable[[], T]) -> T:
        with concurrent.futures.ThreadPoolExecutor(1) as another_thread:  # outside of any strategy's scope or graph
            return another_thread.submit(function).result()

    @staticmethod
    def make_local(optimizer: keras.optimizers.Optimizer) -> None:
        make_local(optimizer)

    @staticmethod
    def scope() -> contextlib.AbstractContextManager:
        return strategies.get().scope()

    @staticmethod
    def stock_scope() -> contextlib.AbstractContextManager:
        return tf.distribute.MirroredStrategy(strategies.get().devices).scope()

    def check_model(self, model: Model) -> None:
        """Raise `ValueError` unless the model was built in `easyscale.scope()`."""
        if strategy_of(model) is not self.strategy:
            is_known = Settings.read().replication == "in_graph"
            remedy = "" if is_known else ", or with no EASYSCALE_REPLICATION=in_graph, by which `scope()` knows of it"
            raise ValueError(
                "in-graph replication needs a model that is built and compiled in `with easyscale.scope():`. "
                f"Received: {type(model).__name__} '{model.name}', which was built outside{remedy}"
            )

    # A replica's part of a step

    def run(self, step: Callable[[Any], T], data: Any, samples: tf.Tensor, model: Model) -> T:
        """Return `step(data)` of one replica. One without data computes with zeros, which do not change metrics."""
        if self.strategy.replica is None:
            return step(data)
        hold_losses(model, functools.partial(LossesOfReplicas, self.strategy))
        has_data = tf.cast(samples, tf.int64) > 0
        before = [tf.identity(variable) for variable in model.metrics_variables]
        result = step(tf.nest.map_structure(_fill, data))
        for state, value in zip(model.metrics_variables, before, strict=True):
            state.assign(tf.where(has_data, state, value))
        return result

    def weight_alone(self, weight: Any) -> Any:
        replica = self.strategy.replica
        number = 0 if replica is None else replica.replica_id_in_sync_group
        return tf.where(tf.equal(number, 0), tf.cast(weight, tf.float64), 0.0)

    @tf.autograph.experimental.do_not_convert
    def once(self, apply: ApplyInStep, gradients: Sequence[Gradient], variables: Sequence[Variable]) -> None:
        """Call `apply(context, gradients, variables)` once for all replicas, with the mean of their gradients.

        Each replica calls it with its own gradients, which are weighted by its step's context.
        """
        replica, context = self.strategy.replica, self._step.context
        if replica is None:
            self.on_one_device(apply)(context, list(gradients), list(variables))
            return
        gradients = [whole_if_fixed(gradient) for gradient in gradients]
        present = [index for index, gradient in enumerate(gradients) if gradient is not None]
        in_rows = [index for index in present if isinstance(gradients[index], tf.IndexedSlices)]
        dense = [index for index in present if index not in in_rows]
        weight, moving = tf.cast(context.weight, tf.float64), list(context.moving)
        tensors = [_shaped(gradients[index], variables[index].shape) for index in dense]
        flat = _pack([*tensors, *map(tf.convert_to_tensor, moving)], weight)
        rows = [_weighted(gradients[index], weight) for index in in_rows]

        def merged(_: tf.distribute.Strategy, flat: Any, rows: Any, weight: Any, data: Any) -> None:
            weight = tf.add_n(self._locals(weight))
            data = [values for of_replicas in data for values in self._locals(of_replicas)]
            scale = tf.math.divide_no_nan(tf.constant(1.0, tf.float64), weight)
            sums = {dtype: self.devices.sum(self._locals(vectors)) for dtype, vectors in flat.items()}
            means = _unpack(sums, scale, [*tensors, *moving])
            whole = list(gradients)
            for index in dense:
                whole[index] = means.pop(0)
            for index, (values, indices) in zip(in_rows, rows, strict=True):
                values = tf.concat(self._locals(values), 0)
                values, indices = values * tf.cast(scale, values.dtype), tf.concat(self._locals(indices), 0)
                whole[index] = tf.IndexedSlices(values, indices, tf.constant(tuple(variables[index].shape), tf.int64))
            with outside():
                for variable, mean in zip(moving, means, strict=True):
                    variable.assign(mean)
                self.on_one_device(apply)(StepContext(weight, data, moving), whole, list(variables))

        replica.merge_call(merged, args=(flat, rows, weight, list(context.data)))

    def _locals(self, value: Any) -> Sequence[tf.Tensor]:
        return self.strategy.experimental_local_results(value)

    def on_one_device(self, apply: ApplyInStep) -> ApplyInStep:
        def on_first_device(context: StepContext, gradients: list, variables: list) -> None:
            with strategies.on_first_device(variables):
                apply(context, gradients, variables)

        return on_first_device

    def rehearse(self, step: Callable[[Any], Any], iterator: Any, variables: Sequence[Variable]) -> None:
        super().rehearse(lambda data: self.strategy.run(step, args=(data,)), iterator, variables)

    def copies_of(self, variable: Variable) -> list[tuple[int, Variable]]:
        """Return a variable's copies, each with its replica's number among those of all processes."""
        first = self.communicator.rank * len(self.devices.devices)
        return list(enumerate(strategies.copies_of(variable), first))

    @tf.autograph.experimental.do_not_convert
    def start_equal(self, variables: Sequence[Variable], root: int = 0) -> None:
        """Overwrite all processes' and devices' `variables` with those of one; see `OneReplica.start_equal`."""
        super().start_equal(variables, root)
        with tf.init_scope(), outside():
            for variable in variables:
                if len(strategies.copies_of(variable)) > 1:
                    variable.assign(tf.convert_to_tensor(variable))

    def check_equal(self, variables: Sequence[Variable], step: int) -> np.ndarray:
        """Return the fingerprint of `variables`; raise `DesyncError` if devices or processes differ."""

        check_equal_copies(variables, self.devices.devices, step)
        return super().check_equal(variables, step)


def _fill(tensor: Any) -> Any:
    """Return the tensor, with one sample of zeros if it is empty."""
    if not isinstance(tensor, tf.Tensor) or not tensor.shape.rank:
        return tensor
    missing = tf.maximum(1 - tf.shape(tensor)[:1], 0)
    return tf.concat([tensor, tf.zeros(tf.concat([missing, tf.shape(tensor)[1:]], 0), tensor.dtype)], 0)


def _shaped(tensor: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
    return tensor if tensor.shape == shape else tf.ensure_shape(tensor, shape)


def _weighted(rows: tf.IndexedSlices, weight: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the values, times `weight`, and the indices."""
    values = tf.math.multiply_no_nan(rows.values, tf.cast(weight, rows.values.dtype))
    return values, tf.cast(rows.indices, tf.int64)


def _pack(tensors: Sequence[tf.Tensor], weight: tf.Tensor) -> dict[str, tf.Tensor]:
    """Return one flat vector for each dtype, times `weight`; half types in float32. Weight 0 gives zeros."""
    flat: dict[str, list] = {}
    for tensor in tensors:
        dtype = _wide(tensor.dtype)
        flat.setdefault(dtype.name, []).append(tf.reshape(tf.cast(tensor, dtype), [-1]))
    return {
        name: tf.math.multiply_no_nan(tf.concat(parts, 0), tf.cast(weight, parts[0].dtype))
        for name, parts in flat.items()
    }


def _unpack(flat: dict[str, tf.Tensor], scale: tf.Tensor, like: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return tensors shaped `like` those that were packed, times `scale`."""
    like = [(tuple(gradient.shape), tf.as_dtype(gradient.dtype)) for gradient in like]
    parts = {}
    for name, vector in flat.items():
        sizes = [math.prod(shape) for shape, dtype in like if _wide(dtype).name == name]
        parts[name] = tf.split(vector * tf.cast(scale, vector.dtype), sizes)
    return [tf.cast(tf.reshape(parts[_wide(dtype).name].pop(0), shape), dtype) for shape, dtype in like]


def _wide(dtype: tf.DType) -> tf.DType:
    return tf.float32 if dtype in (tf.float16, tf.bfloat16) else dtype
