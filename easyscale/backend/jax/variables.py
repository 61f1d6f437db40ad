"""JAX and NumPy arrays, and the values of variables."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from easyscale.keras_internals import native_of, set_native
from easyscale.layout.bucket import ALIGNMENT
from easyscale.layout.specs import Variable

__all__ = ["array_of", "assign", "set_values", "tensor_of", "traced_values_of", "values_of", "view_of"]


def array_of(value: Any) -> np.ndarray:
    """Return an array, a variable or a number as a NumPy array: shared memory on a CPU, a copy from a GPU.

    Raises:
        ValueError: If it is being traced by JAX, and has no value.
    """
    value = getattr(value, "value", value)
    if isinstance(value, jax.core.Tracer):
        raise ValueError(
            "an exchange between workers must not be inside of `jax.jit`. Received: a gradient that is traced. Compile "
            "what makes the gradients, and call `optimizer.apply(gradients, variables)` outside of it"
        )
    return np.asarray(value)


def tensor_of(array: np.ndarray) -> jax.Array:
    """Return a copy of a NumPy array, whose memory may be overwritten later, on Keras's device.

    JAX adopts aligned memory, and may read it after the call has returned. So the copy is made here.
    """
    array = np.asarray(array)
    memory = np.empty(array.nbytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return jax.device_put(copy)  # which adopts the memory; `jnp.asarray` would copy it again


def view_of(variable: Variable) -> np.ndarray:
    """Return a variable's value. It does not change: JAX arrays are immutable."""
    return np.asarray(native_of(variable))


def assign(variable: Variable, value: Any) -> None:
    """Assign an array of equal size."""
    variable.assign(jnp.reshape(value, variable.shape))


def values_of(variables: Sequence[Variable]) -> list[Any]:
    """Return the values of variables, not cast by any dtype policy."""
    return [native_of(variable) for variable in variables]


def traced_values_of(variables: Sequence[Any]) -> list[jax.Array]:
    """Return the values of variables in code that is being traced: those that it has assigned to them, if any."""
    return [variable.value for variable in variables]


def set_values(variables: Sequence[Variable], values: Sequence[Any]) -> None:
    """Set variables to values of the same shapes and dtypes."""
    for variable, value in zip(variables, values, strict=True):
        set_native(variable, value)
