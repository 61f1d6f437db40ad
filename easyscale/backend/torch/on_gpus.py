"""Tensors on GPUs: their way to the CPU's memory and back, and arrays of the same memory there."""

import contextlib
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import torch

from easyscale.backend.torch import variables
from easyscale.gpus import cuda

__all__ = ["array_of", "device", "in_order", "moved", "staged", "tensors_of"]

_LARGE = 1 << 16  # bytes; what is smaller is copied at once


def device(values: Sequence[Any] = ()) -> torch.device:
    """Return the device on which Keras makes tensors here: that of some values, if one of them is on a GPU.

    Keras says it by making a tensor, for which a GPU is waited for.
    """
    found = (variables.native_of(value).device for value in values if not isinstance(value, (bool, int, float)))
    return next((one for one in found if one.type == "cuda"), None) or keras.ops.convert_to_tensor(False).device


def staged(values: Sequence[Any]) -> list[Any]:
    """Return values of which those on a GPU have been copied to the CPU's memory, all at once.

    Memory that is pinned is written to by the GPU itself, many times as fast as other memory; PyTorch keeps it for the
    next step.
    """
    copies: list[Any] = list(values)
    waits = None
    for number, value in enumerate(values):
        if isinstance(value, (bool, int, float)):
            continue
        tensor = variables.native_of(value).detach()
        if tensor.is_cuda and tensor.layout == torch.strided and tensor.nbytes >= _LARGE:
            copies[number] = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            copies[number].copy_(tensor, non_blocking=True)
            waits = torch.cuda.current_stream(tensor.device)
    if waits is not None:
        waits.synchronize()
    return copies


def moved(tensor: torch.Tensor, to: torch.device) -> torch.Tensor:
    """Return a tensor of the CPU's memory on a device: the same on a CPU, on a GPU a copy, by way of pinned memory."""
    if to.type == "cuda" and tensor.nbytes >= _LARGE:
        return tensor.pin_memory().to(to, non_blocking=True)
    return tensor.to(to)


def array_of(value: Any) -> Any:
    """Return a tensor, or a variable, as an array of the same memory, on a GPU if it is there."""
    tensor = variables.native_of(value).detach()
    if not tensor.is_cuda:
        return variables.array_of(tensor)
    tensor = tensor.contiguous()
    dtype = np.dtype(keras.backend.standardize_dtype(tensor.dtype))
    return cuda.array_at(tensor.data_ptr(), tuple(tensor.shape), dtype, tensor)


def tensors_of(arrays: Sequence[Any], dtypes: Sequence[np.dtype], to: torch.device) -> list[torch.Tensor]:
    """Return arrays, some of which may be on a GPU, as tensors on a device: there of the same memory."""
    wholes: dict[tuple[int, np.dtype], torch.Tensor] = {}  # many are views of one vector
    tensors = []
    for array, dtype in zip(arrays, dtypes, strict=True):
        if not cuda.is_there(array):
            tensors.append(moved(variables.tensor_of(np.asarray(array, dtype)), to))
            continue
        memory = array.data.mem
        if (key := (id(memory), array.dtype)) not in wholes:
            wholes[key] = torch.from_dlpack(cuda.whole_memory(array))
        start = (array.data.ptr - memory.ptr) // array.itemsize
        tensors.append(wholes[key][start : start + array.size].view(array.shape))
    return tensors


def in_order(values: Sequence[Any]) -> contextlib.AbstractContextManager:
    """Return a context in which arrays on GPUs are computed with behind what has made these tensors."""
    for value in values:
        tensor = variables.native_of(value)
        if tensor.is_cuda:
            return cuda.on_stream(torch.cuda.current_stream(tensor.device).cuda_stream)
    return contextlib.nullcontext()
