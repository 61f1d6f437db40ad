"""Calls from graphs into Python."""

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
    """Runs calls one after the other, in the order in which they were traced. See `base.HostCalls`.

    It uses `tf.numpy_function`, which copies nothing on a CPU; `tf.py_function` would.
    """

    def __init__(self) -> None:
        with tf.init_scope():
            # Each call reads it before and writes it after, so that TensorFlow runs the calls of a graph in the order
            # in which they were traced, on every rank.
            self._order = tf.Variable(0, dtype=tf.int64, trainable=False, name="easyscale_calls")
        # TensorFlow does not do so in a graph's backward pass.
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
        called = [] if called is None else tf.nest.flatten(called)  # a single result comes without a list in eager mode
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
    """Keep Python's state for this TensorFlow thread between calls.

    Otherwise each call creates one, with a newly mapped stack: a tenth of a step on a small model.
    """
    if not hasattr(_thread, "state"):
        _thread.state = ctypes.pythonapi.PyGILState_Ensure()
