"""The memory of GPUs where there is none: windows in the CPU's memory, and a library of the communicator's messages."""

import numpy as np

from easyscale.exchange.lending import loan


class SimulatedMemory:
    """A `GpuMemory` of NumPy's arrays. What it has given out is on the GPU, all else is the CPU's.

    Args:
        shares: Bool. Whether all ranks share one GPU.
        sees: Bool. Whether this rank can see the others' memory.
        has_library: Bool. Whether there is a library.
    """

    def __init__(self, rank, shares=True, sees=True, has_library=True):
        self._rank, self._shares, self._sees, self._has_library = rank, shares, sees, has_library
        self._known = []  # addresses, from where to where
        self.settled = 0

    def why_not(self):
        return None

    def _remember(self, memory):
        self._known.append((memory.ctypes.data, memory.ctypes.data + memory.nbytes, memory))
        return memory

    def has(self, vector):
        start = vector.ctypes.data
        return any(first <= start and start + vector.nbytes <= last for first, last, _ in self._known)

    def shared(self, communicator, nbytes):
        parts = communicator.allocate_shared(nbytes).parts
        if not self._sees:
            raise ValueError("it does not see")
        return [self._remember(part) for part in parts]

    def loan(self, memory, dtype, come_back):
        return loan(memory, come_back).view(dtype)

    def zeros(self, length, dtype):
        return self._remember(np.zeros(length, dtype))

    def of_host(self, vector):
        return self._remember(vector.copy())

    def to_host(self, vector, out):
        out[...] = vector

    def address(self, vector):
        return vector.ctypes.data

    def settle(self):
        self.settled += 1

    def identity(self):
        return "0" if self._shares else str(self._rank)

    def why_no_library(self):
        return None if self._has_library else "there is none"

    def library(self, communicator):
        return SimulatedLibrary(communicator)


class SimulatedLibrary:
    """A `Library` that sends messages."""

    def __init__(self, communicator):
        self._communicator = communicator

    def reduce(self, parts):
        for root, part in enumerate(parts):
            rows = self._communicator.all_gather_rows(np.ascontiguousarray(part).view(np.uint8))
            if root == self._communicator.rank:
                part[...] = sum(row.view(part.dtype) for row in rows)

    def gather(self, parts):
        for root, part in enumerate(parts):
            bits = part.view(np.uint8).copy()
            self._communicator.broadcast(bits, root=root)
            part[...] = bits.view(part.dtype)
