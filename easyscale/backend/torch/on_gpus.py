"""Tensors on GPUs: transfers to host memory and back, and arrays that share their memory."""

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import torch

from easyscale.backend.torch import variables
from easyscale.gpus import cuda

__all__ = ["array_of", "coming", "device", "in_order", "moved", "tensors_of"]


def device(values: Sequence[Any] = ()) -> torch.device:
    """Return the device on which Keras creates tensors: that of some values, if one of them is on a GPU.

    Asking Keras creates a tensor, which waits for the GPU.
    """
    found = (variables.native_of(value).device for value in values if not isinstance(value, (bool, int, float)))
    return next((one for one in found if one.type == "cuda"), None) or keras.ops.convert_to_tensor(False).device


def coming(values: Sequence[Any]) -> Callable[[], list[Any]]:
    """Start copying values from a GPU to host memory; return a function that waits for all and returns them.

    The copies overlap with the GPU's next computations.
    """
    copies, on_gpu = _flat_ones(values)
    done: torch.cuda.Event | None = None
    for indices, flat in on_gpu:
        beside = _stream_beside(flat.device)
        beside.wait_stream(torch.cuda.current_stream(flat.device))
        with torch.cuda.stream(beside):
            _put(copies, indices, _pinned(flat))
        flat.record_stream(beside)
        done = beside.record_event(done)

    def wait() -> list[Any]:
        if done is not None:
            done.synchronize()
        return copies

    return wait


def _flat_ones(values: Sequence[Any]) -> tuple[list[Any], list[tuple[list[int], torch.Tensor]]]:
    """Return the values as tensors, and for each type those on a GPU: their positions, and a vector of all of them.

    A hundred small copies take longer than a large one.
    """
    tensors: list[Any] = list(values)
    on_gpu: dict[int, torch.Tensor] = {}
    for position, value in enumerate(values):
        if isinstance(value, (bool, int, float)):
            continue
        tensors[position] = tensor = variables.native_of(value).detach()
        if tensor.is_cuda and tensor.layout == torch.strided:
            on_gpu[position] = tensor
    return tensors, [(positions, torch.cat(parts)) for positions, parts in _by_type(on_gpu)]


def _by_type(tensors: Mapping[int, torch.Tensor]) -> list[tuple[list[int], list[torch.Tensor]]]:
    """Return, for each type, the positions of its tensors, and those tensors as vectors."""
    kinds: dict[torch.dtype, list[int]] = {}
    for position, tensor in tensors.items():
        kinds.setdefault(tensor.dtype, []).append(position)
    return [(positions, [tensors[position].reshape(-1) for position in positions]) for positions in kinds.values()]


def _pinned(flat: torch.Tensor) -> torch.Tensor:
    """Start copying a vector from a GPU to pinned memory, which PyTorch keeps for the next step.

    It is many times as fast as pageable memory.
    """
    return torch.empty(flat.shape, dtype=flat.dtype, pin_memory=True).copy_(flat, non_blocking=True)


def _put(tensors: list[torch.Tensor], positions: Sequence[int], flat: torch.Tensor) -> None:
    """Replace tensors by the pieces of a vector, in their shapes."""
    sizes = [tensors[position].numel() for position in positions]
    for position, piece in zip(positions, flat.split(sizes), strict=True):
        tensors[position] = piece.view(tensors[position].shape)


@functools.cache
def _stream_beside(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def moved(tensors: Sequence[torch.Tensor], to: torch.device) -> list[torch.Tensor]:
    """Return tensors in host memory on a device: the same on a CPU, copies by way of pinned memory on a GPU."""
    copies = list(tensors)
    if to.type != "cuda":
        return copies
    for positions, parts in _by_type(dict(enumerate(tensors))):
        pinned = torch.empty(sum(map(torch.numel, parts)), dtype=parts[0].dtype, pin_memory=True)
        torch.cat(parts, out=pinned)
        _put(copies, positions, pinned.to(to, non_blocking=True))
    return copies


def array_of(value: Any) -> Any:
    """Return a tensor or a variable as an array that shares its memory, on a GPU if it is there."""
    tensor = variables.native_of(value).detach()
    if not tensor.is_cuda:
        return variables.array_of(tensor)
    tensor = tensor.contiguous()
    dtype = np.dtype(keras.backend.standardize_dtype(tensor.dtype))
    return cuda.array_at(tensor.data_ptr(), tuple(tensor.shape), dtype, tensor)


def tensors_of(arrays: Sequence[Any], dtypes: Sequence[np.dtype], to: torch.device) -> list[torch.Tensor]:
    """Return arrays, some perhaps on a GPU, as tensors on a device; those on a GPU are not copied."""
    wholes: dict[tuple[int, np.dtype], torch.Tensor] = {}  # many are views of one vector
    found: dict[int, torch.Tensor] = {}
    from_cpu: dict[int, torch.Tensor] = {}
    for number, (array, dtype) in enumerate(zip(arrays, dtypes, strict=True)):
        if not cuda.is_there(array):
            from_cpu[number] = variables.tensor_of(np.asarray(array, dtype))
            continue
        memory = array.data.mem
        if (key := (id(memory), array.dtype)) not in wholes:
            wholes[key] = torch.from_dlpack(cuda.whole_memory(array))
        start = (array.data.ptr - memory.ptr) // array.itemsize
        found[number] = wholes[key][start : start + array.size].view(array.shape)
    found |= zip(from_cpu, moved(list(from_cpu.values()), to), strict=True)
    return [found[number] for number in range(len(found))]


def in_order(values: Sequence[Any]) -> contextlib.AbstractContextManager:
    """Return a context in which operations on GPU arrays run after those that made these tensors."""
    for value in values:
        tensor = variables.native_of(value)
        if tensor.is_cuda:
            return cuda.on_stream(torch.cuda.current_stream(tensor.device).cuda_stream)
    return contextlib.nullcontext()
