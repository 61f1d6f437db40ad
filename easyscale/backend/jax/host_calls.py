"""Where steps call Python with arrays."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from easyscale.backend.jax.variables import array_of, tensor_of

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
    ) -> list[jax.Array]:
        returned = function(*map(array_of, inputs))
        if not results:
            return []
        return [tensor_of(np.asarray(value, dtype)) for value, (_, dtype) in zip(returned, results, strict=True)]
