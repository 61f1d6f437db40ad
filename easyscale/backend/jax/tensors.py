"""Array operations of a step in JAX. Keras creates no row-sparse gradients here."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from easyscale.backend.base import Tensors
from easyscale.backend.jax.graph import Touched
from easyscale.layout.specs import Spec
from easyscale.step.context import Gradient

__all__ = ["ArrayTensors"]


class ArrayTensors(Tensors):
    """Operations on gradients, in code that is being compiled and in eager code."""

    def whole(self, value: Any) -> jax.Array:
        return getattr(value, "value", value)

    def dtype_of(self, tensor: jax.Array) -> np.dtype:
        return np.dtype(tensor.dtype)

    def zeros(self, spec: Spec) -> jax.Array:
        return jnp.zeros(spec.shape, spec.dtype)

    def part_of(self, gradient: Gradient, part: slice) -> Gradient:
        return None if gradient is None else jnp.reshape(gradient, (-1,))[part]

    def nan_unless_finite(self, weight: Any, tensors: Sequence[jax.Array]) -> Any:
        finite = jnp.stack([jnp.isfinite(tensor).all() for tensor in tensors]).all()
        return jnp.where(finite, weight, jnp.nan)

    def if_true(self, condition: jax.Array, act: Callable[[], None]) -> None:
        with Touched() as scope:
            act()
        for variable in scope.written.values():
            variable.assign(jnp.where(condition, scope.get_current_value(variable), variable.value))
