"""The values of variables, without a copy."""

from typing import Any

import numpy as np
import tensorflow as tf

from easyscale.layout.specs import Variable

__all__ = ["assign", "hold", "native_of", "view_of"]


def native_of(variable: Any) -> tf.Variable:
    """Return the native variable of a Keras variable; one of TensorFlow is returned as it is."""
    return variable if isinstance(variable, tf.Variable) else variable.value


def view_of(variable: Variable) -> np.ndarray:
    """Return a variable's value, which is read-only: TensorFlow's own memory, if Python supports its type.

    It does not change with the variable, which gets new memory when it is assigned.
    """
    tensor = tf.convert_to_tensor(variable)
    try:
        return np.asarray(memoryview(tensor))
    except ValueError:  # a type that Python's buffers do not support, such as bfloat16
        return tensor.numpy()


def assign(variable: Variable, value: Any) -> None:
    """Assign a tensor of equal size. Its memory becomes the variable's own."""
    tensor = tf.convert_to_tensor(value)
    variable.assign(tensor if tensor.shape == variable.shape else tf.reshape(tensor, variable.shape))


def hold(variable: Variable, value: np.ndarray | None) -> None:
    """Assign a value, or `None` to free the variable's memory; `assign` would reject the other shape."""
    native = native_of(variable)
    tensor = tf.zeros([0], native.dtype) if value is None else tf.convert_to_tensor(value, native.dtype)
    tf.raw_ops.AssignVariableOp(resource=native.handle, value=tensor, validate_shape=False)
