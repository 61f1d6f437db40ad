"""Calls from steps into Python with arrays."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from easyscale.backend.jax import on_gpus

__all__ = ["HostCalls"]


class HostCalls:
    """Runs calls immediately, between compiled functions, on computed arrays. See `base.HostCalls`.

    Results are copied. A float64 becomes a float32 unless JAX is configured for float64.
    """

    def __call__(
        self,
        function: Callable[..., Any],
        inputs: Sequence[Any],
        results: Sequence[tuple[Sequence[int | None], np.dtype]],
        stay: int = 0,
    ) -> list[jax.Array]:
        go, left = inputs[: len(inputs) - stay], inputs[len(inputs) - stay :]
        returned = function(*on_gpus.staged(go), *map(on_gpus.array_of, left))
        if not results:
            return []
        return on_gpus.tensors_of(returned, [dtype for _, dtype in results])
