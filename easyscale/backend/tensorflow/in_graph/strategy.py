"""The devices of this process, and the TensorFlow strategy that holds a replica of a model on each."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from easyscale import communicator as communicators
from easyscale import logical_devices, visible_gpus
from easyscale.backend.tensorflow import internals
from easyscale.backend.tensorflow.in_graph import devices as device_exchanges
from easyscale.backend.tensorflow.in_graph.device_exchange import DeviceExchange
from easyscale.backend.tensorflow.in_graph.devices.nccl import Nccl
from easyscale.backend.tensorflow.in_graph.devices.parameter_server import ParameterServer
from easyscale.backend.tensorflow.internals import mirrored, of_replicas, outside
from easyscale.backend.tensorflow.variables import native_of
from easyscale.errors import unknown
from easyscale.exchange import Exchange
from easyscale.keras_internals import set_native
from easyscale.layout.specs import Variable
from easyscale.settings import Settings

__all__ = ["Everywhere", "Replicas", "copies_of", "get", "on_first_device"]


class CrossDevice(tf.distribute.ReductionToOneDevice):
    """Makes TensorFlow sum over devices with one of EasyScale's exchanges.

    Attributes:
        exchange: The `DeviceExchange`.
    """

    def __init__(self, exchange: DeviceExchange):
        super().__init__()
        self.exchange = exchange

    def reduce_implementation(
        self, reduce_op: tf.distribute.ReduceOp, per_replica_value: Any, destinations: Any, options: Any
    ) -> Any:
        values = getattr(per_replica_value, "values", (per_replica_value,))
        static = all(isinstance(value, tf.Tensor) and value.shape.is_fully_defined() for value in values)
        if len(values) != len(self.exchange.devices) or not static:
            return super().reduce_implementation(reduce_op, per_replica_value, destinations, options)
        sums = self.exchange.allreduce([tf.reshape(value, [-1]) for value in values])
        results = []
        for device, total, value in zip(self.exchange.devices, sums, values, strict=True):
            with tf.device(device):
                if reduce_op == tf.distribute.ReduceOp.MEAN:
                    total = total / tf.cast(len(values), total.dtype)
                results.append(tf.reshape(total, value.shape))
        return mirrored(results)


class Replicas(tf.distribute.MirroredStrategy):
    """A `tf.distribute.MirroredStrategy` that gives replicas equal parts of each batch, to within a sample.

    TensorFlow's own fills one replica after the other, or mixes batches if their size is unknown. Its threads, which
    bring each device its part, occasionally read from a dataset that was deleted at the end of an epoch, and crash the
    process (signal 11; `MultiDeviceIterator` of 2.21). Here there is a single dataset, whose elements contain the parts
    of all replicas: an epoch of few small steps takes a quarter of the processor time.

    Args:
        devices: List of names of devices.
        exchange: The `DeviceExchange`, which may be replaced.
    """

    def __init__(self, devices: Sequence[str], exchange: DeviceExchange):
        self.devices = list(devices)
        self.cross_device = CrossDevice(exchange)
        super().__init__(self.devices, cross_device_ops=self.cross_device)

    @property
    def replica(self) -> tf.distribute.ReplicaContext | None:
        """The replica whose step is being traced; `None` outside of one."""
        context = tf.distribute.get_replica_context()
        return context if context is not None and context.strategy is self else None

    def experimental_distribute_dataset(self, dataset: tf.data.Dataset, options: Any = None) -> Any:
        count = self.num_replicas_in_sync
        if count == 1:
            return dataset

        @tf.autograph.experimental.do_not_convert  # or TensorFlow warns about functions that it calls
        def divide(*elements: Any) -> Any:
            batch = elements[0] if len(elements) == 1 and not isinstance(dataset.element_spec, tuple) else elements
            return tf.nest.map_structure(
                lambda tensor: of_replicas([_cut(tensor, part, count) for part in range(count)]), batch
            )

        options = tf.data.Options()
        options.autotune.enabled = False
        return dataset.map(divide).with_options(options)

    def run(self, fn: Callable, args: Any = (), kwargs: Any = None, options: Any = None) -> Any:
        if not tf.executing_eagerly():  # may be traced for the lengths of one batch, as by Keras for `predict()`
            args = tf.nest.map_structure(_of_any_length, args, expand_composites=True)
        return super().run(fn, args, kwargs, options)

    def reduce(self, reduce_op: tf.distribute.ReduceOp, value: Any, axis: int | None) -> Any:
        parts = list(self.experimental_local_results(value))
        shapes = [[getattr(element, "shape", None) for element in tf.nest.flatten(part)] for part in parts]
        if axis is None and any(shape != shapes[0] for shape in shapes):
            return parts[-1]  # the longest, if the batch does not divide evenly: Keras needs its shape
        return super().reduce(reduce_op, value, axis)


def _cut(tensor: Any, part: int, count: int) -> Any:
    """Return the `part`-th of `count` parts of a batch's tensor."""
    if isinstance(tensor, (tf.experimental.Optional, tf.data.Dataset)) or not tensor.shape.rank:
        return tensor
    if isinstance(tensor, tf.SparseTensor):
        length = tensor.dense_shape[0]
        start, rest = length * part // count, tensor.dense_shape[1:]
        begin, size = tf.concat([[start], rest * 0], 0), length * (part + 1) // count - start
        return tf.sparse.slice(tensor, begin, tf.concat([[size], rest], 0))
    length = tensor.nrows(tf.int64) if isinstance(tensor, tf.RaggedTensor) else tf.shape(tensor, tf.int64)[0]
    return tensor[length * part // count : length * (part + 1) // count]


def _of_any_length(tensor: Any) -> Any:
    """Return a tensor that is statically empty as one that may have samples, which layers and losses expect."""
    if not isinstance(tensor, tf.Tensor) or not tensor.shape.rank or tensor.shape[0] != 0:
        return tensor
    return tf.compat.v1.placeholder_with_default(tensor, [None, *tensor.shape[1:]])


class Everywhere:
    """The strategy that weight-changing Keras callbacks see in a single-device optimizer: they change all copies.

    Args:
        strategy: The optimizer's own `tf.distribute.Strategy`.
    """

    def __init__(self, strategy: tf.distribute.Strategy):
        self._own = strategy.extended
        self.extended = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def update(self, variable: tf.Variable, change: Callable, args: Sequence[Any] = (), group: bool = True) -> Any:
        """Return `change(variable, *args)`, applied to all copies of the variable.

        `group` is part of TensorFlow's signature, for results of several devices: here there is one.
        """
        with outside():
            return change(variable, *args)


def copies_of(variable: Variable) -> list[tf.Variable]:
    """Return the copies of a TensorFlow or Keras variable, one for each device that has one."""
    native = native_of(variable)
    return list(getattr(native, "values", [native]))


@contextlib.contextmanager
def on_first_device(variables: Sequence[Any]) -> Iterator[None]:
    """Replace Keras `variables` by their copies on the first device; afterwards, update the other copies from these.

    So an update reads, computes and writes once, and can be compiled. TensorFlow's own way visits all devices at each
    assignment, which takes longer to trace than everything else.
    """
    mirrored = [(variable, variable.value) for variable in variables if len(copies_of(variable)) > 1]
    for variable, value in mirrored:
        set_native(variable, value.values[0])
    try:
        yield
    finally:
        for variable, value in mirrored:
            set_native(variable, value)
    for _, value in mirrored:
        first, *others = value.values
        new = first.read_value()
        for copy in others:
            with tf.device(copy.device):
                copy.assign(new)


@functools.cache
def get() -> Replicas:
    """Return the strategy for this process's devices, which the first call creates.

    Raises:
        ValueError: If GPUs were requested and there are too few, or if TensorFlow has started without the devices.
    """
    internals.check()
    devices = _devices()
    return Replicas(devices, exchange_for(None, devices))


def exchange_for(
    name: str | None, devices: Sequence[str], between: Exchange | None = None, strict: bool = False
) -> DeviceExchange:
    """Return the exchange between devices that matches the one between processes.

    Args:
        name: The name of the requested exchange, or `None`.
        devices: List of names of devices.
        between: The exchange between processes. Defaults to `None`.
        strict: Bool. Whether the requested exchange must exist between devices. Defaults to `False`.
    """
    name = name and name.partition(":")[0]
    cls = device_exchanges.get(name) if name else None
    if name and cls is None and strict and len(devices) > 1:
        valid = ["auto", *device_exchanges.available()]
        raise ValueError(unknown("exchange", name, valid, " between the devices of one process"))
    on_gpus = all("GPU" in device for device in devices)
    if cls and cls.only_on_gpus and not on_gpus:
        raise ValueError(f"the exchange '{name}' is for GPUs. Received: {', '.join(devices)}. Choose another")
    _check_server(getattr(between, "servers_device", None))
    cls = cls or (Nccl if on_gpus and len(devices) > 1 else ParameterServer)
    return cls(devices, between)


def _check_server(device: str | None) -> None:
    if device is None:
        return
    valid = [
        f"/{logical.device_type}:{logical.name.rpartition(':')[2]}" for logical in tf.config.list_logical_devices()
    ]
    if not isinstance(device, str) or f"/{device.upper().removeprefix('/').removeprefix('DEVICE:')}" not in valid:
        raise ValueError(f"`servers_device` must be one of {valid}. Received: servers_device={device!r}")


def _devices() -> list[str]:
    setting = Settings.read().devices
    kind, count = (setting.kind, setting.count) if setting is not None else ("", 0)
    comm = communicators.get()
    gpus = tf.config.list_physical_devices("GPU")
    is_share = visible_gpus.are_divided()
    count = count or max(1, len(gpus) if is_share else len(gpus) // comm.local_size)
    first = 0 if is_share else comm.local_rank * count
    if kind != "cpu" and len(gpus) >= first + count:
        return [f"/GPU:{number}" for number in range(first, first + count)]
    if kind == "gpu":
        raise ValueError(
            f"each process must have the GPUs that it is asked to use. Received: gpu:{count} for each of "
            f"{comm.local_size} processes, and {len(gpus)} GPUs on this node. Use fewer, or cpu:{count}"
        )
    try:
        logical_devices.make(count, is_said=comm.rank == 0)
    except RuntimeError:
        raise ValueError(
            f"the {count} logical CPU devices must be made before TensorFlow computes. Received: a TensorFlow that has "
            "started. Import easyscale, or enter `easyscale.scope()`, before anything that makes tensors, layers or "
            "variables"
        ) from None
    return [f"/CPU:{number}" for number in range(count)]
