"""Between-graph replication: one process and one graph for each worker, which meet in an exchange.

TensorFlow calls `GradientExchange` once a step, with all gradients. They come in as views of TensorFlow's memory, are
copied once, into buckets, and go back as views of the buckets: no other copy is made.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from easyscale import bucket
from easyscale.communicator import Communicator
from easyscale.errors import DesyncError
from easyscale.exchange import Exchange
from easyscale.replication.agreement import Agreed, Agreement, first_difference, signature
from easyscale.replication.lending import Lending

__all__ = ["BetweenGraph"]


class BetweenGraph:
    """The workers of one optimizer, seen from the graph of one of them.

    Args:
        exchange: A connected `Exchange`.
        bucket_bytes: Int. Gradients travel in vectors of about this size. Defaults to `None`: one for each dtype.

    Attributes:
        batch_weight: Scalar tensor or number. The weight of this worker's gradients in the mean over workers: the
            number of samples that they were made from. 1 unless something sets it.
    """

    def __init__(self, exchange: Exchange, bucket_bytes: int | None = None):
        self.exchange = exchange
        self.communicator = exchange.communicator
        self.bucket_bytes = bucket_bytes
        self.batch_weight = 1.0
        self._shared = _Shared.of(self.communicator)
        self._number = self._shared.new_number()
        self._exchanges: dict[int, GradientExchange] = {}

    # Gradients

    @tf.autograph.experimental.do_not_convert
    def average(self, gradients: Sequence[object], variables: Sequence[object]) -> list:
        """Return the mean of all workers' gradients, in the graph, each worker's weighted by `batch_weight`.

        Args:
            gradients: Tensors, `IndexedSlices`, or `None` for a variable that has none.
            variables: The variables they belong to.
        """
        present = [index for index, gradient in enumerate(gradients) if gradient is not None]
        if self.communicator.size == 1 or not present:
            return list(gradients)
        tensors = [tf.convert_to_tensor(gradients[index]) for index in present]
        exchange = self._exchange_of(tensors, [variables[index] for index in present])
        with tf.control_dependencies([self._shared.order.read_value()]):
            weight = tf.cast(self.batch_weight, tf.float64)
            means = tf.numpy_function(exchange, [weight, *tensors], [tensor.dtype for tensor in tensors])
        with tf.control_dependencies(means):
            self._shared.order.assign_add(1)
        averaged = list(gradients)
        for index, mean in zip(present, means, strict=True):
            averaged[index] = tf.ensure_shape(mean, variables[index].shape)
        return averaged

    def _exchange_of(self, tensors: Sequence[tf.Tensor], variables: Sequence[object]) -> "GradientExchange":
        whose = f" of optimizer {self._number}" if self._number else ""
        pairs = zip(tensors, variables, strict=True)
        kinds = [f"{tuple(variable.shape)} {tensor.dtype.name}{whose}" for tensor, variable in pairs]
        key = signature(kinds)
        if key not in self._exchanges:
            self._exchanges[key] = GradientExchange(self, self._shared, kinds, tensors, variables)
        return self._exchanges[key]

    # Workers that have run out of data

    def wait_for_others(self) -> Agreed | None:
        """Tell the others that this worker has no more data in this epoch.

        Returns:
            What the others exchange next, in which this worker has to `join`; `None` if they have no more data either.
        """
        return self._shared.agreement.reach((), 0.0) if self.communicator.size > 1 else None

    def join(self, agreed: Agreed, apply: Callable[[list, list], None]) -> bool:
        """Take part in an exchange of the others with weight zero.

        Args:
            agreed: What `wait_for_others` returned.
            apply: The function that averages gradients by this object and updates variables with them.

        Returns:
            Whether this is an exchange of this optimizer's.
        """
        exchange = self._exchanges.get(agreed.signature)
        if exchange is None:
            return False
        self._shared.agreed = agreed
        if exchange.idle_step is None:

            @tf.function(autograph=False)
            def idle_step():
                apply([tf.zeros(shape, dtype) for shape, dtype in exchange.shapes], exchange.variables)

            exchange.idle_step = idle_step
        exchange.idle_step()
        return True

    def meet_for_metrics(self) -> None:
        """Return when all workers are about to sum their metrics; see `Agreement.meet_for_metrics`."""
        self._shared.agreement.meet_for_metrics()

    # Everything else

    def count_samples(self, tensors: Sequence[object]) -> tf.Tensor | float:
        """Return the number of samples in a batch, given as the list of its tensors, some of which may be `None`."""
        for tensor in tensors:
            if isinstance(tensor, tf.RaggedTensor):
                return tensor.nrows()
            if isinstance(tensor, tf.SparseTensor):
                return tensor.dense_shape[0]
            if tensor is not None and len(tensor.shape):
                return tf.shape(tensor)[0]
        return 1.0

    def rehearse(self, step: Callable, iterator: tf.data.Iterator) -> None:
        """Trace `step(next(iterator))` without running it, so that it makes the variables it makes the first time."""

        def absent_as_none(spec: tf.TypeSpec) -> tf.TypeSpec | None:
            return None if isinstance(spec, tf.OptionalSpec) else spec

        specs = tf.nest.map_structure(absent_as_none, iterator.element_spec)
        tf.function(step, autograph=False).get_concrete_function(specs)

    @tf.autograph.experimental.do_not_convert
    def start_equal(self, variables: Sequence[object]) -> None:
        """Overwrite all workers' `variables` with the chief's.

        Raises:
            ValueError: If a variable has no value yet, because it is made by the step that is being traced.
            DesyncError: If the workers' variables differ in number, shape or dtype.
        """
        if self.communicator.size == 1:
            return
        with tf.init_scope():
            for variable in variables:
                native = variable if isinstance(variable, tf.Variable) else variable.value
                if not native.is_initialized():
                    raise ValueError(
                        "a model must be built before its first step, so that all workers can start equal. Received: "
                        f"no value of {getattr(variable, 'path', variable.name)}. Give it an `Input`, call "
                        "`model.build(...)`, or pass `easyscale.callbacks.Distribute()` to `fit()`"
                    )
            values = [np.array(tf.convert_to_tensor(variable), order="C") for variable in variables]
            everyones = self.communicator.share([f"{value.shape} {value.dtype}" for value in values])
            if any(other != everyones[0] for other in everyones):
                raise DesyncError(
                    "all ranks must build the same model and optimizer. Received: variables "
                    f"{first_difference(dict(enumerate(everyones)))}. Run one script on all ranks"
                )
            for variable, value in zip(variables, values, strict=True):
                if value.size and value.dtype != object:
                    self.communicator.broadcast(value.reshape(-1))
                    variable.assign(value)

    @contextlib.contextmanager
    def explained(self, on_failure: Callable[[], None]) -> Iterator[None]:
        """Raise what an exchange raised inside the graph as it was, without TensorFlow's wrapping.

        Args:
            on_failure: Called when anything but the end of the data is raised.
        """
        self._shared.failure = None
        try:
            yield
        except (StopIteration, tf.errors.OutOfRangeError):
            raise
        except BaseException:
            on_failure()
            if self._shared.failure is not None:
                raise self._shared.failure from None
            raise


class GradientExchange:
    """What `tf.numpy_function` calls: the exchange of one list of gradients.

    Args:
        workers: The `BetweenGraph` that it belongs to.
        shared: The `_Shared` of its communicator.
        kinds: Descriptions of the gradients, the same on all ranks.
        tensors: The gradients, in the graph.
        variables: The variables that they belong to.
    """

    __name__ = "exchange_gradients"  # tf.numpy_function wants a name

    def __init__(self, workers: BetweenGraph, shared: "_Shared", kinds: list, tensors: Sequence, variables: Sequence):
        self._exchange, self._shared, self._kinds = workers.exchange, shared, kinds
        self.variables = list(variables)
        self.shapes = [(tuple(one.shape), tensor.dtype) for one, tensor in zip(variables, tensors, strict=True)]
        self.idle_step = None
        plan = bucket.plan([(shape, dtype.as_numpy_dtype) for shape, dtype in self.shapes], workers.bucket_bytes)
        self._buckets = [(one, Lending(lambda one=one: self._exchange.allocate(one.length, one.dtype))) for one in plan]

    def __call__(self, weight: np.ndarray, *gradients: np.ndarray) -> list[np.ndarray]:
        try:
            agreed, self._shared.agreed = self._shared.agreed, None
            if agreed is None:
                agreed = self._shared.agreement.reach(self._kinds, float(weight))
            means = {}
            for one, lending in self._buckets:
                vector = lending.lend()
                one.pack(gradients, vector, agreed.share)
                self._exchange.allreduce(vector)
                means.update(one.unpack(vector))
            return [means[index] for index in range(len(gradients))]
        except Exception as error:
            self._shared.failure = error
            raise


class _Shared:
    """What all optimizers of a process that use one communicator have in common.

    Attributes:
        agreement: The `Agreement`: their exchanges are counted together.
        agreed: What was agreed on in advance for the next exchange, or `None`.
        order: A variable that each exchange reads before and writes after, so that TensorFlow runs the exchanges of
            one graph in the order in which they were traced, on every rank.
        failure: The exception that an exchange last raised inside the graph, or `None`.
    """

    def __init__(self, communicator: Communicator):
        self.agreement = Agreement(communicator)
        self.agreed = None
        self.failure = None
        self._numbers = 0
        with tf.init_scope():
            self.order = tf.Variable(0, dtype=tf.int64, trainable=False, name="easyscale_exchanges")

    @classmethod
    def of(cls, communicator: Communicator) -> "_Shared":
        if communicator not in _shared:
            _shared[communicator] = cls(communicator)
        return _shared[communicator]

    def new_number(self) -> int:
        self._numbers += 1
        return self._numbers - 1


_shared: dict[Communicator, _Shared] = {}
