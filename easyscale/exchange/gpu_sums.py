"""The base class of the algorithms that sum vectors in GPU memory."""

import abc
from collections.abc import Callable

import numpy as np

from easyscale.communicator import Communicator
from easyscale.exchange.vectors import HALF
from easyscale.gpus.memory import GpuMemory, GpuVector

__all__ = ["GpuSums"]

_BITS = {2: np.dtype("float16"), 4: np.dtype("int32"), 8: np.dtype("int64")}


class GpuSums(abc.ABC):
    """`reduce` and `gather` for vectors in GPU memory; one in the CPU's memory is copied there and back.

    Args:
        communicator: The `Communicator`.
        memory: `GpuMemory` that holds the vectors.
        divide: Function. Takes a length, returns for each rank the slice that it owns.
    """

    def __init__(self, communicator: Communicator, memory: GpuMemory, divide: Callable[[int], list[slice]]):
        self._communicator, self._memory, self._divide = communicator, memory, divide

    def lend(self, length: int, dtype: np.dtype) -> GpuVector:
        """Return a vector in GPU memory with undefined values. All ranks must call this with the same arguments."""
        return self._memory.zeros(length, dtype)

    def reduce(self, vector: GpuVector) -> None:
        """Overwrite the owned part of a vector with its sum over ranks; half types are summed in float32."""
        if vector.size == 0:
            return
        is_half, own = vector.dtype in HALF, self._divide(vector.size)[self._communicator.rank]
        there = vector if self._memory.has(vector) else self._memory.of_host(vector)
        total = there.astype("float32") if is_half else there
        self._sum(total)
        if is_half:
            there[own] = total[own]
        if there is not vector:
            self._memory.to_host(there, vector)

    def gather(self, vector: GpuVector) -> None:
        """Overwrite a vector with the owners' parts."""
        if vector.size == 0:
            return
        bits = vector.view(_BITS[vector.itemsize])  # whatever its dtype: it is only copied
        there = bits if self._memory.has(bits) else self._memory.of_host(bits)
        self._spread(there)
        if there is not bits:
            self._memory.to_host(there, bits)

    @abc.abstractmethod
    def _sum(self, vector: GpuVector) -> None:
        """Overwrite the owned part of a vector on the GPU with its sum over ranks."""

    @abc.abstractmethod
    def _spread(self, vector: GpuVector) -> None:
        """Overwrite a vector on the GPU with the owners' parts."""
