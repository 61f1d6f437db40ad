"""Where steps call Python with arrays."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from easyscale.backend.torch.variables import array_of, tensor_of

__all__ = ["HostCalls"]


class HostCalls:
    """Calls at once: a step is Python. See `base.HostCalls`."""

    def __call__(
        self,
        function: Callable[..., Any],
        inputs: Sequence[Any],
        results: Sequence[tuple[Sequence[int | None], np.dtype]],
    ) -> list[torch.Tensor]:
        returned = function(*map(array_of, inputs))
        if not results:
            return []
        return [tensor_of(np.asarray(value, dtype)) for value, (_, dtype) in zip(returned, results, strict=True)]
