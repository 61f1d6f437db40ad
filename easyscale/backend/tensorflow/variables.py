"""The values of variables, without a copy."""

from typing import Any

import numpy as np
import tensorflow as tf

from easyscale.layout.specs import Variable

__all__ = ["assign", "hold", "native_of", "view_of"]


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


def hold(variable: Variable, value: np.ndarray | None) -> None:
    """Give a variable a value or, so that it takes no memory, none; `assign` would not have it of another shape."""
    native = native_of(variable)
    tensor = tf.zeros([0], native.dtype) if value is None else tf.convert_to_tensor(value, native.dtype)
    tf.raw_ops.AssignVariableOp(resource=native.handle, value=tensor, validate_shape=False)
