"""Memory of NVIDIA's GPUs, with CuPy, whose arrays support NumPy's functions and can wrap other frameworks' memory."""

import contextlib
import functools
import importlib
import importlib.util
import math
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from easyscale.communicator import Communicator
from easyscale.gpus.memory import GpuVector

__all__ = ["Cuda", "array_at", "is_there", "on_stream", "whole_memory"]


@functools.cache
def _cupy() -> Any:
    return importlib.import_module("cupy")


def array_at(pointer: int, shape: Sequence[int], dtype: np.dtype, owner: Any) -> GpuVector:
    """Return GPU memory as an array, which keeps a reference to its owner. The caller must wait for pending writes.

    Raises:
        ValueError: If CuPy does not support the dtype, such as bfloat16.
    """
    cuda, nbytes = _cupy().cuda, math.prod(shape) * dtype.itemsize
    if dtype.kind not in "biuf":
        raise ValueError(
            f"gradients that stay on GPUs must be of a type that CuPy has. Received: {dtype.name}. Use the exchange "
            "'shared_memory' or 'hierarchical', which go through the CPU's memory"
        )
    if nbytes == 0:
        return _cupy().empty(shape, dtype)
    return _cupy().ndarray(shape, dtype, cuda.MemoryPointer(cuda.UnownedMemory(pointer, nbytes, owner), 0))


def whole_memory(array: GpuVector) -> GpuVector:
    """Return an array of the whole memory block that an array is a view of; it keeps the block's owner."""
    memory = array.data.mem
    start = _cupy().cuda.MemoryPointer(memory, 0)
    return _cupy().ndarray((memory.size // array.itemsize,), array.dtype, start)


def is_there(array: Any) -> bool:
    """Return whether an array is in GPU memory."""
    return not isinstance(array, np.ndarray) and hasattr(type(array), "__cuda_array_interface__")


def on_stream(pointer: int) -> contextlib.AbstractContextManager:
    """Return a context in which this thread enqueues its work on a framework's stream."""
    return _cupy().cuda.ExternalStream(pointer) if pointer else _cupy().cuda.Stream.null


class Cuda:
    """Memory of the GPU that CuPy uses in this process: the first visible one. See `GpuMemory`.

    Shared memory is kept until the process ends: freeing it while another process maps it is undefined behaviour.

    Reference: NVIDIA, "CUDA C++ programming guide", section "Interprocess communication".
    """

    def why_not(self) -> str | None:
        if importlib.util.find_spec("cupy") is None:
            return "CuPy is not installed. Run: pip install cupy-cuda12x, or cupy-cuda13x as your driver is"
        try:
            count = _cupy().cuda.runtime.getDeviceCount()
        except Exception as error:  # CUDA's, if there is no driver
            return f"CUDA finds no GPU ({error}). Look at nvidia-smi"
        return None if count else "CUDA finds no GPU. Look at CUDA_VISIBLE_DEVICES"

    def has(self, vector: GpuVector) -> bool:
        return is_there(vector)

    def shared(self, communicator: Communicator, nbytes: int) -> list[GpuVector]:
        runtime = _cupy().cuda.runtime
        own = runtime.malloc(max(nbytes, 1))
        said = [os.getpid(), own, runtime.ipcGetMemHandle(own).hex()]
        pointers = []
        for process, pointer, handle in communicator.all_gather_object(said):
            try:
                pointers.append(pointer if process == os.getpid() else runtime.ipcOpenMemHandle(bytes.fromhex(handle)))
            except runtime.CUDARuntimeError as error:
                raise ValueError(
                    "the processes of a node must see each other's memory of GPUs for the exchange 'cuda_ipc'. "
                    f"Received: {error}. Use 'nccl' or 'shared_memory'"
                ) from error
        return [array_at(pointer, (nbytes,), np.dtype("uint8"), None) for pointer in pointers]

    def loan(self, memory: GpuVector, dtype: np.dtype, come_back: Callable[[], None]) -> GpuVector:
        token = _Token()  # kept alive by all views of the vector
        weakref.finalize(token, come_back)
        return array_at(self.address(memory), (memory.nbytes // dtype.itemsize,), dtype, token)

    def zeros(self, length: int, dtype: np.dtype) -> GpuVector:
        return _cupy().zeros(length, dtype)

    def of_host(self, vector: np.ndarray) -> GpuVector:
        return _cupy().asarray(vector)

    def to_host(self, vector: GpuVector, out: np.ndarray) -> None:
        vector.get(out=out)

    def address(self, vector: GpuVector) -> int:
        return int(vector.data.ptr)

    def settle(self) -> None:
        _cupy().cuda.Device().synchronize()

    def identity(self) -> str:
        runtime = _cupy().cuda.runtime
        return str(runtime.deviceGetPCIBusId(runtime.getDevice()))

    def why_no_library(self) -> str | None:
        try:
            found = getattr(_nccl(), "available", False)
        except ImportError:
            found = False
        return None if found else "CuPy does not find libnccl. Run: pip install nvidia-nccl-cu12, or -cu13"

    def library(self, communicator: Communicator) -> "_Library":
        return _Library(communicator)


class _Token:
    """The owner of a loaned vector, collected after the last view."""


@functools.cache
def _nccl() -> Any:
    return importlib.import_module("cupy.cuda.nccl")


class _Library:
    """NCCL over the ranks of a communicator. See `Library`.

    All ranks use the unique id of rank 0, sent over the communicator. The calls of a group are launched together.

    Reference: NVIDIA, "NVIDIA Collective Communication Library (NCCL) documentation", section "Group calls".
    """

    def __init__(self, communicator: Communicator):
        self._nccl = _nccl()
        own = self._nccl.get_unique_id()  # bytes, or a tuple of signed numbers in CuPy before 14
        unique = type(own)(communicator.all_gather_object(list(own))[0])
        self._communicator = self._nccl.NcclCommunicator(communicator.size, unique, communicator.rank)
        self._types = {np.dtype(name): getattr(self._nccl, constant) for name, constant in _TYPES.items()}

    def reduce(self, parts: Sequence[GpuVector]) -> None:
        with self._group():
            for root, part in enumerate(parts):
                if part.size:
                    where = part.data.ptr, part.data.ptr, part.size, self._types[part.dtype]
                    self._communicator.reduce(*where, self._nccl.NCCL_SUM, root, _stream())

    def gather(self, parts: Sequence[GpuVector]) -> None:
        with self._group():
            for root, part in enumerate(parts):
                if part.size:
                    where = part.data.ptr, part.data.ptr, part.size, self._types[part.dtype]
                    self._communicator.broadcast(*where, root, _stream())

    @contextlib.contextmanager
    def _group(self) -> Iterator[None]:
        self._nccl.groupStart()
        try:
            yield
        finally:
            self._nccl.groupEnd()


_TYPES = {
    "float16": "NCCL_FLOAT16",
    "float32": "NCCL_FLOAT32",
    "float64": "NCCL_FLOAT64",
    "int32": "NCCL_INT32",
    "int64": "NCCL_INT64",
}


def _stream() -> int:
    return int(_cupy().cuda.get_current_stream().ptr)
