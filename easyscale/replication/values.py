"""The values of variables as NumPy arrays: without a copy, or with one."""

import numpy as np
import tensorflow as tf

__all__ = ["value_of", "view_of"]


def view_of(variable: object) -> np.ndarray:
    """Return a variable's value, which must not be written to: TensorFlow's own memory, where Python knows its type.

    It stays what it is when the variable changes, which has another memory then.
    """
    tensor = tf.convert_to_tensor(variable)
    try:
        return np.asarray(memoryview(tensor))
    except ValueError:  # a type that Python's buffers do not know, such as bfloat16
        return tensor.numpy()


def value_of(variable: object) -> np.ndarray:
    """Return a copy of a variable's value."""
    return np.array(view_of(variable))
