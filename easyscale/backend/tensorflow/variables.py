"""The values of variables, without a copy."""

from typing import Any

import numpy as np
import tensorflow as tf

from easyscale.layout.specs import Variable

__all__ = ["assign", "native_of", "release", "restore", "view_of"]


def native_of(variable: Any) -> tf.Variable:
    """Return the variable of TensorFlow that a variable of Keras, or of TensorFlow itself, is."""
    return variable if isinstance(variable, tf.Variable) else variable.value


def view_of(variable: Variable) -> np.ndarray:
    """Return a variable's value, which must not be written to: TensorFlow's own memory, where Python knows its type.

    It stays what it is when the variable changes, which has another memory then.
    """
    tensor = tf.convert_to_tensor(variable)
    try:
        return np.asarray(memoryview(tensor))
    except ValueError:  # a type that Python's buffers do not know, such as bfloat16
        return tensor.numpy()


def assign(variable: Variable, value: Any) -> None:
    """Give a variable a tensor of as many elements. Its memory becomes the variable's own."""
    tensor = tf.convert_to_tensor(value)
    variable.assign(tensor if tensor.shape == variable.shape else tf.reshape(tensor, variable.shape))


def release(variable: Variable) -> None:
    """Let a variable have no value, and no memory, until `restore`."""
    _set(variable, tf.zeros([0], native_of(variable).dtype))


def restore(variable: Variable, value: np.ndarray) -> None:
    """Give a variable a value of its shape again."""
    _set(variable, tf.convert_to_tensor(value, native_of(variable).dtype))


def _set(variable: Variable, value: tf.Tensor) -> None:
    """Give a variable a value of whatever shape, which `assign` would refuse."""
    tf.raw_ops.AssignVariableOp(resource=native_of(variable).handle, value=value, validate_shape=False)
