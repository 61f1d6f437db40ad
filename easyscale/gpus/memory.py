"""Protocols for GPU memory and GPU collectives."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from easyscale.communicator import Communicator

__all__ = ["GpuMemory", "GpuVector"]

# An array that NumPy's functions compute on where it is: CuPy's, or, in tests without a GPU, NumPy's.
GpuVector = Any


class GpuMemory(Protocol):
    """Memory of the GPU that this process computes on. It returns vectors whose slices are views."""

    def why_not(self) -> str | None:
        """Return why GPU memory is not available here, and the remedy; `None` if it is."""

    def has(self, vector: GpuVector) -> bool:
        """Return whether a vector is in GPU memory."""

    def shared(self, communicator: Communicator, nbytes: int) -> list[GpuVector]:
        """Return a byte buffer of each rank, accessible to all ranks of a node. Collective: all of them call this.

        Raises:
            ValueError: On a rank that cannot access another's buffer.
        """

    def loan(self, memory: GpuVector, dtype: np.dtype, come_back: Callable[[], None]) -> GpuVector:
        """Return a byte buffer as a vector of a dtype; call `come_back()` when it and all its views are gone."""

    def zeros(self, length: int, dtype: np.dtype) -> GpuVector:
        """Return a vector of zeros."""

    def of_host(self, vector: np.ndarray) -> GpuVector:
        """Return a copy of a NumPy vector on the GPU."""

    def to_host(self, vector: GpuVector, out: np.ndarray) -> None:
        """Copy a vector to a NumPy vector."""

    def address(self, vector: GpuVector) -> int:
        """Return the address of a vector's first element."""

    def settle(self) -> None:
        """Wait for all work that this process has enqueued on its GPU."""

    def identity(self) -> str:
        """Return an identifier of this process's GPU, unique on its host."""

    def why_no_library(self) -> str | None:
        """Return why no GPU collective library is available, and the remedy; `None` if one is."""

    def library(self, communicator: Communicator) -> "Library":
        """Return the GPU collective library for these ranks. Collective: all of them call this."""


class Library(Protocol):
    """Asynchronous GPU collectives, enqueued in the order of the calls."""

    def reduce(self, parts: Sequence[GpuVector]) -> None:
        """On rank `i`, overwrite part `i` with its sum over ranks."""

    def gather(self, parts: Sequence[GpuVector]) -> None:
        """Overwrite each part `i` with that of rank `i`."""
