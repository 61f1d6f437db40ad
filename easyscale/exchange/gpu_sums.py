"""How vectors are summed in the memory of GPUs: what is common to all ways."""

import abc
from collections.abc import Callable

import numpy as np

from easyscale.communicator import Communicator
from easyscale.exchange.vectors import HALF
from easyscale.gpus.memory import GpuMemory, GpuVector

__all__ = ["GpuSums"]

_BITS = {2: np.dtype("float16"), 4: np.dtype("int32"), 8: np.dtype("int64")}


class GpuSums(abc.ABC):
    """The two movements of an exchange, for vectors on GPUs; one in the CPU's memory is copied there and back.

    Args:
        communicator: The `Communicator`.
        memory: `GpuMemory`. Where vectors are.
        divide: Function of a length. Returns, for each rank, the slice that it owns.
    """

    def __init__(self, communicator: Communicator, memory: GpuMemory, divide: Callable[[int], list[slice]]):
        self._communicator, self._memory, self._divide = communicator, memory, divide

    def lend(self, length: int, dtype: np.dtype) -> GpuVector:
        """Return a vector of the GPU's with undefined values. All ranks call this alike."""
        return self._memory.zeros(length, dtype)

    def reduce(self, vector: GpuVector) -> None:
        """Overwrite the owned part of a vector with its sum over ranks; of a half type in float32."""
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
        """Overwrite a vector with what each part's owner holds."""
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
        """Overwrite a vector on the GPU with what each part's owner holds."""
