"""Where graphs call Python."""

import ctypes
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

__all__ = ["HostCalls"]

_thread = threading.local()


class HostCalls:
    """Calls one after the other, in the order in which they were traced. See `base.HostCalls`.

    By `tf.numpy_function`, which copies nothing on a CPU; `tf.py_function` would.
    """

    def __init__(self) -> None:
        with tf.init_scope():
            # Each call reads it before and writes it after, so that TensorFlow makes the calls of one graph in the
            # order in which they were traced, on every rank.
            self._order = tf.Variable(0, dtype=tf.int64, trainable=False, name="easyscale_calls")
        # The backward pass of a graph is one in which TensorFlow does not do that.
        self._last: weakref.WeakKeyDictionary[tf.Graph, tf.Operation] = weakref.WeakKeyDictionary()

    def __call__(
        self,
        function: Callable[..., Any],
        inputs: Sequence[Any],
        results: Sequence[tuple[Sequence[int | None], np.dtype]],
        stay: int = 0,
    ) -> list[tf.Tensor]:
        tensors = [tf.convert_to_tensor(value, tf.float64 if isinstance(value, float) else None) for value in inputs]

        def call(*arrays: np.ndarray) -> Any:
            _keep_thread()
            return function(*arrays)

        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        before = [self._last[graph]] if graph in self._last else []
        with tf.control_dependencies([self._order.read_value(), *before]):
            called = tf.numpy_function(call, tensors, [tf.as_dtype(dtype) for _, dtype in results])
        called = [] if called is None else tf.nest.flatten(called)  # one result comes without a list where all is eager
        with tf.control_dependencies(called):
            moved = self._order.assign_add(1, read_value=False)
        if graph is not None:
            self._last[graph] = moved
        if not results:
            return []
        for tensor, (shape, _) in zip(called, results, strict=True):
            tensor.set_shape(shape)
        return called


def _keep_thread() -> None:
    """Let Python keep its state of this thread, which is TensorFlow's, also between calls.

    Else each call makes one anew, with a stack for which it maps memory: on a small model a tenth of a step.
    """
    if not hasattr(_thread, "state"):
        _thread.state = ctypes.pythonapi.PyGILState_Ensure()
