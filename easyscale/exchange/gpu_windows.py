"""A pool of GPU memory that the ranks of a node can read from each other."""

import dataclasses
import functools
import operator
from collections.abc import Callable

import numpy as np

from easyscale.communicator import Communicator
from easyscale.exchange.meetings import FLAGS_BYTES, Meetings, form_of
from easyscale.gpus.memory import GpuMemory, GpuVector

__all__ = ["Windows"]


class Windows:
    """Vectors of all ranks, all on one node, that each of them can read. Each method is collective.

    Args:
        communicator: The `Communicator`.
        memory: `GpuMemory` that holds the vectors.
    """

    def __init__(self, communicator: Communicator, memory: GpuMemory):
        self._communicator, self._memory = communicator, memory
        self._meetings = Meetings(communicator, communicator.allocate_shared(FLAGS_BYTES))
        self._windows: list[_Pooled] = []

    @classmethod
    def of(cls, communicator: Communicator, memory: GpuMemory) -> "Windows":
        """Return the object of `communicator`; create it the first time."""
        known = vars(communicator)  # it lives as long as the communicator
        if "_gpu_windows" not in known:
            known["_gpu_windows"] = cls(communicator, memory)
        return known["_gpu_windows"]

    def lend(self, length: int, dtype: np.dtype, capacity: Callable[[int], int]) -> GpuVector:
        """Return a vector with undefined values. Its memory is lent again when no rank has a view of it any more.

        Args:
            length: Int. The number of elements.
            dtype: The dtype of the elements.
            capacity: Function. Takes a number of bytes, returns the size of a new window for them.
        """
        nbytes = length * dtype.itemsize
        if nbytes == 0:
            return self._memory.zeros(0, dtype)
        fits = [pooled for pooled in self._windows if nbytes <= pooled.nbytes <= 2 * nbytes][:62]
        said = sum(pooled.free << bit for bit, pooled in enumerate(fits))
        self._meetings.meet(form_of(nbytes, dtype), said)
        free = functools.reduce(operator.and_, self._meetings.words)
        window = fits[(free & -free).bit_length() - 1] if free else self._add(capacity(nbytes))
        window.free = False
        own = window.parts[self._communicator.rank][:nbytes]
        return self._memory.loan(own, dtype, functools.partial(setattr, window, "free", True))

    def _add(self, nbytes: int) -> "_Pooled":
        parts = self._memory.shared(self._communicator, nbytes)
        start = self._memory.address(parts[self._communicator.rank])
        self._windows.append(_Pooled(parts, nbytes, start))
        return self._windows[-1]

    def views(self, vector: GpuVector) -> list[GpuVector] | None:
        """Return each rank's counterpart of `vector`, when all have written; `None` if it is not in a window."""
        self._memory.settle()
        place, views = self._find(vector)
        self._meetings.meet(form_of(vector.nbytes, vector.dtype), place)
        return views if place and all(other == place for other in self._meetings.words) else None

    def _find(self, vector: GpuVector) -> tuple[int, list[GpuVector]]:
        start = self._memory.address(vector)
        for number, window in enumerate(self._windows, 1):
            offset = start - window.start
            if offset >= 0 and offset + vector.nbytes <= window.nbytes:
                return (number << 48) + offset, [
                    part[offset : offset + vector.nbytes].view(vector.dtype) for part in window.parts
                ]
        return 0, []

    def part(self) -> None:
        """Wait until all ranks have finished reading."""
        self._memory.settle()
        self._meetings.meet()


@dataclasses.dataclass
class _Pooled:
    """A window: the bytes of each rank, their number, the address of this rank's, and whether they are free."""

    parts: list[GpuVector]
    nbytes: int
    start: int
    free: bool = True
