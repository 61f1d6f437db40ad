"""Workers that are groups of ranks, as each rank of them sees the others."""

import functools
from collections.abc import Callable, Sequence

import numpy as np

from easyscale.communicator.communicator import Communicator, Request, Window
from easyscale.communicator.wait import Wait
from easyscale.elastic.membership import FixedMembership, Membership

__all__ = ["DataAxis", "everyone_of", "group_of", "make_alike"]


class DataAxis(Communicator):
    """The ranks that have the same weights as this one, one in each worker, where a worker is a group of ranks.

                 group
            0 ------- 1        of rank 2: `group` is ranks 2 and 3, these ranks are 0 and 2, numbered 0 and 1,
            |         |        and `everyone` is ranks 0 to 3
            2 ------- 3

    Ranks of a group have the same number, that of their worker. What all of them must know, such as what they do next,
    goes over `everyone`; gradients, and what follows from different batches, between these ranks. What all ranks of a
    group compute for themselves may differ in its last bits, by the order in which threads or a graph add up, or by
    their processors: so of gradients each rank takes a part of those of each other.

    Args:
        along: `Communicator` of these ranks.
        group: `Communicator` of this rank's worker.
        beside: Another `Communicator` of the same, for what a thread beside sends.
        everyone: `Communicator` of all ranks. Neighbours are a group.

    Attributes:
        group, beside, everyone: The same.
    """

    def __init__(self, along: Communicator, group: Communicator, beside: Communicator, everyone: Communicator):
        self._along, self.group, self.beside, self.everyone = along, group, beside, everyone
        self.sent, self.progress, self.nodes = along.sent, along.progress, along.nodes
        self.timeline = everyone.timeline
        self.rank, self.size = along.rank, along.size
        self.local_rank, self.local_size = along.local_rank, along.local_size
        self.host, self.library = along.host, along.library

    @property
    def is_chief(self) -> bool:
        return self.everyone.is_chief

    @functools.cached_property
    def membership(self) -> Membership:
        # By these numbers random numbers differ between workers, and errors name the first rank of one.
        everyone = self.everyone.membership
        numbers = everyone.initial_ranks[:: self.group.size]
        return FixedMembership(self.rank, self.size, initial_ranks=numbers, initial_size=everyone.initial_size)

    def isend(self, buffer: np.ndarray, to: int) -> Request:
        return self._along.isend(buffer, to)

    def ireceive(self, buffer: np.ndarray, source: int) -> Request:
        return self._along.ireceive(buffer, source)

    def allocate_shared(self, nbytes: int) -> Window:
        return self._along.allocate_shared(nbytes)

    def allocate_shared_among(self, ranks: Sequence[int], nbytes: int) -> Window:
        return self._along.allocate_shared_among(ranks, nbytes)

    def poll(self, done: Callable[[], bool], wait: Wait) -> None:
        self._along.poll(done, wait)


def everyone_of(workers: Communicator) -> Communicator:
    """Return all ranks that take the same steps: of workers of several ranks, all of these."""
    return workers.everyone if isinstance(workers, DataAxis) else workers


def group_of(workers: Communicator) -> Communicator | None:
    """Return the ranks that are one worker with this one; `None` where each is one."""
    return workers.group if isinstance(workers, DataAxis) else None


def make_alike(workers: Communicator, array: np.ndarray) -> None:
    """Let ranks that are one worker have the same bits of an array that each has computed.

    Each rank's part of it becomes that of all: `(G - 1) / G` of its bytes are sent by each of `G` ranks, in `G - 1`
    messages. Where each worker is one rank this does nothing.
    """
    if isinstance(workers, DataAxis) and array.size:
        workers.beside.all_gather(array.reshape(-1), np.linspace(0, array.size, workers.beside.size + 1).astype(int))
