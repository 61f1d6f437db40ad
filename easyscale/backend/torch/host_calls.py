"""Calls from steps into Python with arrays."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from easyscale.backend.torch import on_gpus
from easyscale.backend.torch.variables import array_of

__all__ = ["HostCalls"]


class HostCalls:
    """Runs calls immediately: a step is Python code. See `base.HostCalls`."""

    def __call__(
        self,
        function: Callable[..., Any],
        inputs: Sequence[Any],
        results: Sequence[tuple[Sequence[int | None], np.dtype]],
        stay: int = 0,
    ) -> list[torch.Tensor]:
        go, left = inputs[: len(inputs) - stay], inputs[len(inputs) - stay :]
        with on_gpus.in_order(left):
            returned = function(*map(array_of, on_gpus.coming(go)()), *map(on_gpus.array_of, left))
        if not results:
            return []
        return on_gpus.tensors_of(returned, [dtype for _, dtype in results], on_gpus.device(inputs))
