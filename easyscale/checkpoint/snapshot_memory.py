"""Memory that is reused from one snapshot to the next. NumPy only."""

from collections.abc import Sequence

import numpy as np

from easyscale.layout.specs import Spec

__all__ = ["SnapshotMemory"]


class SnapshotMemory:
    """Arrays for repeated snapshots of the same shapes, each time in the same memory.

    Allocating memory takes longer than filling it: the system clears each page that it hands out, and a virtual machine
    may have to ask its host for it. So each snapshot reuses the memory of the one before.

    Example:

    >>> memory = SnapshotMemory()
    >>> first = memory.copy(np.ones(3))
    >>> memory.begin()
    >>> memory.copy(np.zeros(3)) is first
    True
    """

    def __init__(self) -> None:
        self._arrays: list[np.ndarray] = []
        self._next = 0

    def begin(self) -> None:
        """Begin a snapshot, which will overwrite the arrays of the one before."""
        self._next = 0

    def release(self) -> None:
        """Free the memory."""
        self._arrays, self._next = [], 0

    def reserve(self, specs: Sequence[Spec]) -> None:
        """Begin a snapshot whose arrays will have these specs, in this order.

        Raises:
            MemoryError: If there is too little memory. All arrays are freed then.
        """
        self.begin()
        try:
            for shape, dtype in specs:
                self.empty(shape, dtype)
        except MemoryError:
            self._arrays.clear()
            raise
        self.begin()

    def empty(self, shape: Sequence[int] | int, dtype: np.dtype) -> np.ndarray:
        """Return the snapshot's next array, uninitialised."""
        shape = tuple(np.atleast_1d(np.asarray(shape, int)).tolist())
        if self._next == len(self._arrays):
            self._arrays.append(np.empty(0))
        array = self._arrays[self._next]
        if array.shape != shape or array.dtype != dtype:
            array = self._arrays[self._next] = np.empty(shape, dtype)
        self._next += 1
        return array

    def copy(self, array: np.ndarray) -> np.ndarray:
        """Return a copy of `array`."""
        copy = self.empty(array.shape, array.dtype)
        np.copyto(copy, array)
        return copy
