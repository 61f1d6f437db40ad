"""Two-level exchange: shared memory inside a node, another exchange between nodes."""

import copy
from collections.abc import Callable

import numpy as np

from easyscale.communicator import Communicator
from easyscale.communicator.group import Group
from easyscale.exchange.exchange import Cost, Exchange, Path
from easyscale.exchange.in_node import InNodeMemory
from easyscale.exchange.node_memory import NodeMemory
from easyscale.exchange.registry import register
from easyscale.exchange.ring import Ring
from easyscale.exchange.shared_memory import SharedMemory
from easyscale.exchange.tree import Tree

_BETWEEN: dict[str, type[Exchange]] = {"ring": Ring, "tree": Tree}


@register("hierarchical")
class Hierarchical(InNodeMemory):
    """Sum inside each node by shared memory, then between nodes, where each rank carries its own part.

            node 0   0   1
                     |   |      one lane for each local rank, of S / L bytes
            node 1   2   3

    With `N` nodes of `L` ranks and a buffer of `S` bytes each rank sends what the exchange between nodes sends for
    `S / L` bytes: with a ring `2 * (N - 1)` messages and `2 * (S / L) * (N - 1) / N` bytes. A node sends and receives
    no more than one rank of a flat ring would, and all its ranks share the work.

    1. In each node local rank `l` sums lane `l` of the vectors of all ranks of the node.
    2. The local ranks `l` of all nodes reduce lane `l` to its owners; with a ring each owns `1 / N` of it.
    3. On the way back the same lanes carry the owners' parts, and the ranks of a node read each other's.

    If nodes have different numbers of ranks, there are as many lanes as the smallest has ranks; ranks without a lane
    sum nothing and own nothing.

    Args:
        between: String. The exchange between nodes, `"ring"` or `"tree"`. Defaults to `"ring"`.

    Reference: Goyal et al., "Accurate, large minibatch SGD: training ImageNet in 1 hour", 2017, section 4.
    """

    options = tuple(_BETWEEN)
    is_elastic = True

    def __init__(self, between: str = "ring"):
        self._between = _BETWEEN[between]
        self.name = self.name if between == "ring" else f"{self.name}:{between}"

    @staticmethod
    def cost(size: int, nbytes: int) -> Cost | None:
        return None  # it depends on the nodes

    def critical_path(self, size: int, nbytes: int, local_size: int = 1, servers: int = 0) -> Path | None:
        if size <= local_size:
            return SharedMemory().critical_path(size, nbytes, local_size)
        if local_size < 2 or size % local_size:
            return None
        lane = self._between().critical_path(size // local_size, nbytes // local_size)
        # A node's link carries all of its lanes.
        return lane and Path(lane.steps, lane.bytes * local_size, lane.memory + 2 * nbytes)

    @classmethod
    def suits(cls, communicator: Communicator) -> bool:
        return len(communicator.nodes) > 1

    def connect(self, communicator: Communicator) -> "Exchange":
        super().connect(communicator)
        self._make_lanes()
        return self

    def shrink(self) -> None:
        super().shrink()
        self._make_lanes()

    def _make_lanes(self) -> None:
        communicator = self.communicator
        self._lanes = min(map(len, communicator.nodes))
        self.travels_by = "messages" if len(communicator.nodes) > 1 else "memory"
        self._lane: Exchange | None = None  # that of this rank's lane
        if communicator.local_rank < self._lanes:
            ranks = [node[communicator.local_rank] for node in communicator.nodes]
            self._lane = self._between().connect(Group(communicator, ranks))

    def over(self, wrap: Callable[[Communicator], Communicator]) -> Exchange:
        other = copy.copy(self)
        other._lane = self._lane and self._lane.over(wrap)
        return other

    def owned(self, length: int) -> slice:
        lane = self._owned_ranges(length)[self.communicator.local_rank]
        if self._lane is None:
            return lane
        own = self._lane.owned(lane.stop - lane.start)
        return slice(lane.start + own.start, lane.start + own.stop)

    def _reduce(self, buffer: np.ndarray) -> None:
        if self.communicator.local_size > 1:
            NodeMemory.of(self.communicator).reduce(buffer, self._owned_ranges)
        if self._lane is not None:
            self._lane.reduce(buffer[self._owned_ranges(buffer.size)[self.communicator.local_rank]])

    def _gather(self, buffer: np.ndarray) -> None:
        if self._lane is not None:
            self._lane.gather(buffer[self._owned_ranges(buffer.size)[self.communicator.local_rank]])
        if self.communicator.local_size > 1:
            NodeMemory.of(self.communicator).gather(buffer, self._owned_ranges)

    def _owned_ranges(self, length: int) -> list[slice]:
        """Return the lane of each local rank, empty for those that have none."""
        bounds = [length * lane // self._lanes for lane in range(self._lanes + 1)]
        bounds += [length] * (self.communicator.local_size - self._lanes)
        return [slice(start, stop) for start, stop in zip(bounds[:-1], bounds[1:], strict=True)]
