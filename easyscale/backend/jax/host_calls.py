"""Where steps call Python with arrays."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from easyscale.backend.jax import on_gpus

__all__ = ["HostCalls"]


class HostCalls:
    """Calls at once, between what is compiled: it is given arrays that have been computed. See `base.HostCalls`.

    What comes back is copied, and a float64 is a float32 unless JAX was told to have float64.
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
