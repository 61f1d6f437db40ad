"""Sums of the gradients of large weights, accumulated during the backward pass."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from easyscale import keras_internals
from easyscale.layout.specs import Variable

__all__ = ["GradientSums"]

LARGE = 1 << 20  # minimum bytes of a weight: a sum of its own costs some 50 us per pass


class GradientSums:
    """Accumulates gradients inside the backward pass, so that memory holds the sums and only one gradient.

    A backward pass returns all gradients at once, so that they would be in memory twice: the sums, and those of the
    last micro-batch. Here a weight is read through an operation whose gradient adds to the weight's sum; `token` is
    another input of that operation, and the pass returns only the token's gradient, a zero.

        forward    weight, token ---> identity ---> layers
        backward   sum += gradient <----------------+

    Row-sparse gradients, as of embeddings, are not summed here: the pass returns them.

    Args:
        variables: The variables. Large ones of Keras have sums.

    Attributes:
        token: Scalar tensor. An input of the forward pass.
    """

    def __init__(self, variables: Sequence[Variable]):
        self.token = tf.zeros([])
        self._variables = {
            index: variable
            for index, variable in enumerate(variables)
            if isinstance(variable, keras.Variable)
            and math.prod(variable.shape) * tf.as_dtype(variable.dtype).size >= LARGE
        }
        self._sums: dict[int, tf.Variable] = {}  # of variables that have had dense gradients
        self._is_first = tf.Variable(True, trainable=False)
        self._has_some = False

    @contextlib.contextmanager
    def reading(self, token: tf.Tensor) -> Iterator[None]:
        """Make reads of large variables accumulate gradients within this context, in the graph of a forward pass.

        Args:
            token: The tensor in the graph that stands for `token`.
        """
        natives = {index: variable.value for index, variable in self._variables.items()}
        try:
            for index, native in natives.items():
                keras_internals.set_native(self._variables[index], self._read(index, native.read_value(), token))
            yield
        finally:
            for index, native in natives.items():
                keras_internals.set_native(self._variables[index], native)

    def forget(self) -> bool:
        """Disable the sums, because layers need the variables themselves; return whether there could have been any."""
        had, self._variables, self._sums = bool(self._variables), {}, {}
        return had

    def begin_backward(self) -> None:
        """Called before each backward pass."""
        self._is_first.assign(not self._has_some)
        self._has_some = True

    def take(self, index: int) -> tf.Tensor | None:
        """Return a variable's sum, and free its memory here; `None` if there is none.

        Args:
            index: Int. The number of the variable.
        """
        if not self._has_some or index not in self._sums:
            return None
        total = self._sums[index].read_value()
        _empty(self._sums[index])
        return total

    def end(self) -> None:
        """Called after all sums were taken."""
        self._has_some = False

    def _read(self, index: int, weight: tf.Tensor, token: tf.Tensor) -> tf.Tensor:
        @tf.custom_gradient
        def read(weight: tf.Tensor, token: tf.Tensor) -> tuple:
            def add(gradient: Any) -> tuple:
                if isinstance(gradient, tf.IndexedSlices):
                    return gradient, tf.zeros([])
                return None, self._add(index, gradient)

            return tf.identity(weight), add

        return read(weight, token)

    def _add(self, index: int, gradient: tf.Tensor) -> tf.Tensor:
        """Add to a sum, in the graph of a backward pass; return the token's gradient, which depends on the addition."""
        with tf.init_scope():
            if index not in self._sums:
                empty = tf.Variable(tf.zeros([0], gradient.dtype), shape=tf.TensorShape(None), trainable=False)
                self._sums[index] = empty
        total = self._sums[index]

        def first() -> tf.Tensor:
            return _behind(tf.raw_ops.AssignVariableOp(resource=total.handle, value=gradient, validate_shape=False))

        def later() -> tf.Tensor:
            return _behind(tf.raw_ops.AssignAddVariableOp(resource=total.handle, value=gradient))

        return tf.cond(self._is_first, first, later)


def _behind(operation: Any) -> tf.Tensor:
    with tf.control_dependencies([operation]):
        return tf.zeros([])


def _empty(variable: tf.Variable) -> None:
    tf.raw_ops.AssignVariableOp(resource=variable.handle, value=tf.zeros([0], variable.dtype), validate_shape=False)
