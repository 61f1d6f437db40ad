"""Tensors and arrays that share memory, and the values of variables."""

from typing import Any

import ml_dtypes
import numpy as np
import torch

from easyscale.layout.specs import Variable

__all__ = ["array_of", "assign", "native_of", "tensor_of", "view_of"]

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def native_of(variable: Any) -> torch.Tensor:
    """Return the tensor of a Keras variable; a tensor is returned as it is."""
    return variable if isinstance(variable, torch.Tensor) else variable.value


def array_of(value: Any) -> np.ndarray:
    """Return a tensor, a variable or a number as an array: shared memory on a CPU, a copy from a GPU.

    Raises:
        ValueError: If it is a sparse tensor.
    """
    if isinstance(value, (bool, int, float)):
        return np.asarray(value)
    tensor = native_of(value).detach()
    if tensor.layout != torch.strided:
        raise ValueError(
            f"gradients must be dense tensors. Received: one of layout {tensor.layout}. Make it with sparse=False"
        )
    if tensor.is_cuda:
        pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)  # many times as fast as pageable memory
        tensor = pinned.copy_(tensor)
    if tensor.dtype == torch.bfloat16:  # which torch passes to NumPy as bits only
        return tensor.view(torch.int16).numpy().view(_BFLOAT16)
    return tensor.numpy()


def tensor_of(array: np.ndarray) -> torch.Tensor:
    """Return an array as a tensor that shares its memory."""
    if array.dtype == _BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def view_of(variable: Variable) -> np.ndarray:
    """Return a copy of a variable's value: changes are written to the variable's own memory."""
    return np.array(array_of(variable))


def assign(variable: Variable, value: Any) -> None:
    """Copy a tensor or an array of equal size into a variable."""
    native, value = native_of(variable), tensor_of(value) if isinstance(value, np.ndarray) else value
    with torch.no_grad():
        native.copy_(value.reshape(native.shape))
