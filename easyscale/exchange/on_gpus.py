"""The base class of exchanges whose vectors may be in GPU memory."""

import copy
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from easyscale.communicator import Communicator
from easyscale.exchange.exchange import Exchange
from easyscale.exchange.gpu_sums import GpuSums
from easyscale.gpus.cuda import Cuda
from easyscale.gpus.memory import GpuMemory, GpuVector

__all__ = ["OnGpus", "for_gpus", "for_host"]


def for_gpus(exchange: Exchange) -> Exchange:
    """Return the exchange for tensors on GPUs, with vectors in GPU memory if it can. All ranks must call this."""
    return exchange.for_gpus() if isinstance(exchange, OnGpus) else exchange


def for_host(exchange: Exchange) -> Exchange:
    """Return the exchange for NumPy arrays, with vectors in the CPU's memory."""
    return exchange.for_host() if isinstance(exchange, OnGpus) else exchange


class OnGpus(Exchange):
    """An exchange that sums vectors in GPU memory; one in the CPU's memory is copied there and back.

    It lends vectors in the CPU's memory, as all exchanges do. `for_gpus()` returns one that lends vectors in GPU
    memory, which support NumPy's functions.

    Args:
        memory: `GpuMemory`. Defaults to `None`: that of NVIDIA's GPUs.

    Attributes:
        memory: The same.
        sums: The class of its `GpuSums`.
    """

    travels_by = "library"
    sums: ClassVar[type[GpuSums]]
    _made: GpuSums | None = None

    def __init__(self, memory: GpuMemory | None = None):
        self.memory: GpuMemory = Cuda() if memory is None else memory

    @staticmethod
    def why_not() -> str | None:
        """Return the reason why this machine does not support it, and the remedy; `None` if it does."""
        return Cuda().why_not()

    @classmethod
    def suits(cls, communicator: Communicator) -> bool:
        return False  # the backend chooses it if tensors are on GPUs

    def connect(self, communicator: Communicator) -> Exchange:
        if communicator.size > 1 and (problem := self.memory.why_not()):
            raise ValueError(f"the exchange '{self.name}' needs GPUs and CuPy. Received: {problem}")
        return super().connect(communicator)

    @property
    def _sums(self) -> GpuSums:
        if self._made is None:  # not a `cached_property`, whose lock blocks ranks that are threads
            self._made = self.sums(self.communicator, self.memory, self._owned_ranges)
        return self._made

    def for_gpus(self) -> Exchange:
        """Return this exchange with vectors in GPU memory. All ranks must call this."""
        other = copy.copy(self)
        other.on_gpus = self.communicator.size > 1 and bool(self._sums)  # fails now if it cannot work
        return other

    def for_host(self) -> Exchange:
        """Return this exchange with vectors in the CPU's memory."""
        other = copy.copy(self)
        other.on_gpus = False
        return other

    def over(self, wrap: Callable[[Communicator], Communicator]) -> Exchange:
        return self  # it does not send through the communicator

    def allocate(self, length: int, dtype: str | np.dtype = "float32") -> GpuVector:
        return self.memory.zeros(length, np.dtype(dtype)) if self.on_gpus else super().allocate(length, dtype)

    def lend(self, length: int, dtype: str | np.dtype = "float32", common: bool = False) -> GpuVector:
        return self._sums.lend(length, np.dtype(dtype)) if self.on_gpus else super().lend(length, dtype)

    def reduce(self, buffer: GpuVector) -> None:
        self._sums.reduce(buffer) if self.on_gpus else super().reduce(buffer)

    def gather(self, buffer: GpuVector) -> None:
        self._sums.gather(buffer) if self.on_gpus else super().gather(buffer)

    def _reduce(self, buffer: np.ndarray) -> None:
        self._sums.reduce(buffer)

    def _gather(self, buffer: np.ndarray) -> None:
        self._sums.gather(buffer)

    def _owned_ranges(self, length: int) -> list[slice]:
        return [self._owned_range(length, rank) for rank in range(self.communicator.size)]
