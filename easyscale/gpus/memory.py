"""What is asked of the memory of GPUs."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from easyscale.communicator import Communicator

__all__ = ["GpuMemory", "GpuVector"]

# An array that does what NumPy's functions ask of it where it is: CuPy's. NumPy's own in tests, without a GPU.
GpuVector = Any


class GpuMemory(Protocol):
    """Memory of the GPU that this process computes on. What it gives are vectors, of whom slices are views."""

    def why_not(self) -> str | None:
        """Return why there is no such memory here, and the remedy; `None` if there is."""

    def has(self, vector: GpuVector) -> bool:
        """Return whether a vector is in such memory, and not in the CPU's."""

    def shared(self, communicator: Communicator, nbytes: int) -> list[GpuVector]:
        """Return bytes of each of the ranks, all on one node, which all of them see. They call this alike.

        Raises:
            ValueError: On the rank that cannot see another's.
        """

    def loan(self, memory: GpuVector, dtype: np.dtype, come_back: Callable[[], None]) -> GpuVector:
        """Return bytes as a vector of a dtype; call `come_back()` when neither it nor a view of it is left."""

    def zeros(self, length: int, dtype: np.dtype) -> GpuVector:
        """Return a vector of zeros."""

    def of_host(self, vector: np.ndarray) -> GpuVector:
        """Return a copy of a vector of NumPy's."""

    def to_host(self, vector: GpuVector, out: np.ndarray) -> None:
        """Copy a vector to one of NumPy's."""

    def address(self, vector: GpuVector) -> int:
        """Return where a vector begins."""

    def settle(self) -> None:
        """Return when all that this process has begun on its GPU is done."""

    def identity(self) -> str:
        """Return what tells this process's GPU from all others."""

    def why_no_library(self) -> str | None:
        """Return why there is no library that sums over GPUs, and the remedy; `None` if there is."""

    def library(self, communicator: Communicator) -> "Library":
        """Return the library that sums over GPUs, for these ranks. They call this alike."""


class Library(Protocol):
    """Collectives of GPUs, which are begun, in the order of the calls, and not waited for."""

    def reduce(self, parts: Sequence[GpuVector]) -> None:
        """Overwrite the part of the rank's number with its sum over ranks."""

    def gather(self, parts: Sequence[GpuVector]) -> None:
        """Overwrite each part with that of the rank of its number."""
