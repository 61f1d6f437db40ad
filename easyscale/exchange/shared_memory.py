"""The shared-memory exchange: the ranks of a node read each other's vectors, and nothing is sent."""

from collections.abc import Callable

import numpy as np

from easyscale.communicator import Communicator
from easyscale.exchange.exchange import Cost, Exchange, Path
from easyscale.exchange.in_node import InNodeMemory
from easyscale.exchange.node_memory import SHORT_BYTES, NodeMemory
from easyscale.exchange.registry import register
from easyscale.exchange.vectors import HALF, aligned, check


@register("shared_memory")
class SharedMemory(InNodeMemory):
    """Sum vectors in place: each rank adds its part of the others' to its own.

            rank 0   [ own | ... ]      each rank reads the parts that it owns from all
            rank 1   [ ... | own ]      windows, and writes their sum back into all

    With `P` ranks on one node and a buffer of `S` bytes no message is sent. Each rank reads `S` bytes and writes `S`,
    in blocks of 128 KiB that stay in its cache while they are summed.

    1. Vectors from `allocate` are in windows, which all ranks of the node see. At a barrier all have written.
    2. Each sums its own `1 / P` and writes the sum into every window. A second barrier follows.

    Any other vector is copied first, all but the rank's own part, and the others' sums are copied back:
    `S * (P - 1) / P` bytes each way, and a third barrier. Vectors up to 64 KiB are copied whole and summed by every
    rank, with one barrier. At a barrier ranks poll each other's flags, at first busily, then with pauses.

    Reference: MPI Forum, "MPI: A Message-Passing Interface Standard", version 3.1, section 11.2.3, 2015; the owners
    follow Xu et al., "Automatic cross-replica sharding of weight update in data-parallel training", 2020.
    """

    is_elastic = True
    travels_by = "memory"

    @staticmethod
    def cost(size: int, nbytes: int) -> Cost | None:
        return Cost(steps=0, messages=0, bytes=0)

    def critical_path(self, size: int, nbytes: int, local_size: int = 1, servers: int = 0) -> Path | None:
        if local_size < size:
            return None
        return Path(0, 0, 2 * nbytes if size > 1 else 0)

    @classmethod
    def suits(cls, communicator: Communicator) -> bool:
        return len(communicator.nodes) == 1

    def connect(self, communicator: Communicator) -> "Exchange":
        if not self.suits(communicator):
            raise ValueError(
                f"all ranks must be on one node for the exchange 'shared_memory'. Received: {len(communicator.nodes)} "
                "nodes. Use 'hierarchical'"
            )
        return super().connect(communicator)

    def over(self, wrap: Callable[[Communicator], Communicator]) -> Exchange:
        return self  # nothing is sent

    def lend(self, length: int, dtype: str | np.dtype = "float32", common: bool = False) -> np.ndarray:
        if not common and length * np.dtype(dtype).itemsize <= SHORT_BYTES:  # copied anyway: no need for a window
            return self._lending.lend(length, np.dtype(dtype), aligned)
        return super().lend(length, dtype, common)

    def allreduce(self, buffer: np.ndarray) -> None:
        check(buffer)
        if self.communicator.size == 1 or buffer.dtype in HALF:
            super().allreduce(buffer)
        else:
            NodeMemory.of(self.communicator).allreduce(buffer, self._owned_ranges)

    def _reduce(self, buffer: np.ndarray) -> None:
        NodeMemory.of(self.communicator).reduce(buffer, self._owned_ranges)

    def _gather(self, buffer: np.ndarray) -> None:
        NodeMemory.of(self.communicator).gather(buffer, self._owned_ranges)

    def _owned_ranges(self, length: int) -> list[slice]:
        return [self._owned_range(length, rank) for rank in range(self.communicator.size)]
