"""Arrays of JAX and of NumPy, and the values of variables."""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from easyscale.keras_internals import native_of, set_native
from easyscale.layout.bucket import ALIGNMENT
from easyscale.layout.specs import Variable

__all__ = ["array_of", "assign", "given_away", "holding", "set_values", "tensor_of", "values_of", "view_of"]


def array_of(value: Any) -> np.ndarray:
    """Return an array, a variable or a number as an array of NumPy: on a CPU the same memory, from a GPU a copy.

    Raises:
        ValueError: If it is of a function that JAX traces, and has no value.
    """
    value = getattr(value, "value", value)
    if isinstance(value, jax.core.Tracer):
        raise ValueError(
            "an exchange between workers must not be inside of `jax.jit`. Received: a gradient that is traced. Compile "
            "what makes the gradients, and call `optimizer.apply(gradients, variables)` outside of it"
        )
    return np.asarray(value)


def tensor_of(array: np.ndarray) -> jax.Array:
    """Return a copy of an array of NumPy, whose memory others may write to, on the device of Keras.

    JAX takes memory that is aligned as an array's own, and may read it later than it says. So the copy is made here.
    """
    array = np.asarray(array)
    memory = np.empty(array.nbytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return jax.device_put(copy)  # which takes it as it is, where `jnp.asarray` copies it once more


def view_of(variable: Variable) -> np.ndarray:
    """Return a variable's value: JAX writes to no array."""
    return np.asarray(native_of(variable))


def assign(variable: Variable, value: Any) -> None:
    """Give a variable an array of as many elements."""
    variable.assign(jnp.reshape(value, variable.shape))


def values_of(variables: Sequence[Variable]) -> list[Any]:
    """Return the values of variables, which no policy casts."""
    return [native_of(variable) for variable in variables]


def given_away(arrays: list[jax.Array]) -> list[jax.Array]:
    """Return arrays, or copies of those that somebody else has, for a function that writes to their memory."""
    for index in range(len(arrays)):
        if sys.getrefcount(arrays[index]) > 2:  # the list's, and that of the call
            arrays[index] = jnp.copy(arrays[index])
    return arrays


def set_values(variables: Sequence[Variable], values: Sequence[Any]) -> None:
    """Give variables values of their own shapes and dtypes."""
    for variable, value in zip(variables, values, strict=True):
        set_native(variable, value)


@contextlib.contextmanager
def holding(variables: Sequence[Variable], values: Sequence[Any]) -> Iterator[None]:
    """Inside, variables have other values."""
    before = values_of(variables)
    set_values(variables, values)
    try:
        yield
    finally:
        set_values(variables, before)
