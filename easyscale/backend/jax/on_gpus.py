"""JAX arrays on GPUs: transfers to host memory and back, and arrays that share their memory."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from easyscale.backend.jax import variables
from easyscale.gpus import cuda

__all__ = ["array_of", "is_gpu", "staged", "tensors_of"]


def is_gpu() -> bool:
    """Return whether JAX computes on a GPU."""
    return jax.default_backend() == "gpu"


def staged(values: Sequence[Any]) -> list[np.ndarray]:
    """Return values as NumPy arrays; transfers from a GPU all start before the first one is waited for."""
    for value in values if is_gpu() else ():
        native = getattr(value, "value", value)
        if isinstance(native, jax.Array) and not isinstance(native, jax.core.Tracer):
            native.copy_to_host_async()
    return [variables.array_of(value) for value in values]


def array_of(value: Any) -> Any:
    """Return a JAX array or a variable as an array that shares its memory, on a GPU if it is there."""
    native = getattr(value, "value", value)
    if isinstance(native, jax.core.Tracer) or next(iter(native.devices())).platform != "gpu":
        return variables.array_of(value)
    pointer = jax.block_until_ready(native).unsafe_buffer_pointer()
    return cuda.array_at(pointer, native.shape, np.dtype(native.dtype), native)


def tensors_of(values: Sequence[Any], dtypes: Sequence[np.dtype]) -> list[jax.Array]:
    """Return NumPy arrays, or arrays on a GPU, as JAX arrays with their own memory."""
    tensors = []
    for value, dtype in zip(values, dtypes, strict=True):
        if cuda.is_there(value):  # its memory may be overwritten next
            tensors.append(jax.block_until_ready(jnp.array(jax.dlpack.from_dlpack(value), copy=True)))
        else:
            tensors.append(variables.tensor_of(np.asarray(value, dtype)))
    return tensors
