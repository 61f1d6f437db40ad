"""Tensor operations of a step in PyTorch. Keras creates no row-sparse gradients here."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import torch

from easyscale.backend.base import Tensors
from easyscale.backend.torch.variables import native_of
from easyscale.layout.specs import Spec
from easyscale.step.context import Gradient

__all__ = ["EagerTensors"]


class EagerTensors(Tensors):
    """Operations on gradients that have been computed."""

    def whole(self, value: Any) -> torch.Tensor:
        return native_of(value)

    def dtype_of(self, tensor: torch.Tensor) -> np.dtype:
        return np.dtype(keras.backend.standardize_dtype(tensor.dtype))

    def zeros(self, spec: Spec) -> torch.Tensor:
        return keras.ops.zeros(spec.shape, spec.dtype.name)

    def part_of(self, gradient: Gradient, part: slice) -> Gradient:
        return None if gradient is None else gradient.reshape(-1)[part]

    def nan_unless_finite(self, weight: Any, tensors: Sequence[torch.Tensor]) -> Any:
        return weight if all(bool(tensor.isfinite().all()) for tensor in tensors) else float("nan")

    def if_true(self, condition: torch.Tensor, act: Callable[[], None]) -> None:
        if condition:
            act()
