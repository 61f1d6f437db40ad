"""Communicators for workers that are groups of ranks."""

import functools
from collections.abc import Callable, Sequence

import numpy as np

from easyscale.communicator.communicator import Communicator, Request, Window
from easyscale.communicator.wait import Wait
from easyscale.elastic.membership import FixedMembership, Membership

__all__ = ["DataAxis", "everyone_of", "group_of", "make_alike"]


class DataAxis(Communicator):
    """The ranks with the same weights as this one, one in each worker, where a worker is a group of ranks.

                 group
            0 ------- 1        of rank 2: `group` is ranks 2 and 3, these ranks are 0 and 2, numbered 0 and 1,
            |         |        and `everyone` is ranks 0 to 3
            2 ------- 3

    All ranks of a group have the same rank here, the number of their worker. Control messages, such as what to do next,
    go over `everyone`. Gradients, and everything else that depends on the batch, travel between these ranks. Values
    that all ranks of a group compute redundantly may differ in their last bits, with the order in which threads or a
    graph add, or with the processor. So each rank takes one part of the gradients from each other rank of its group.

    Args:
        along: `Communicator` of these ranks.
        group: `Communicator` of this rank's worker.
        beside: Another `Communicator` of the group, for a background thread.
        everyone: `Communicator` of all ranks. Neighbouring ranks form a group.

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
        # With these numbers random seeds differ between workers, and errors name a worker's first rank.
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
    """Return the communicator of all ranks that train together: all ranks of each worker."""
    return workers.everyone if isinstance(workers, DataAxis) else workers


def group_of(workers: Communicator) -> Communicator | None:
    """Return the communicator of this rank's worker, or `None` if each rank is a worker."""
    return workers.group if isinstance(workers, DataAxis) else None


def make_alike(workers: Communicator, array: np.ndarray) -> None:
    """Make an array that each rank of a worker has computed bitwise identical on all of them.

    Each rank's part of it replaces the others': each of `G` ranks sends `(G - 1) / G` of its bytes, in `G - 1`
    messages. If each worker is one rank this does nothing.
    """
    if isinstance(workers, DataAxis) and array.size:
        workers.beside.all_gather(array.reshape(-1), np.linspace(0, array.size, workers.beside.size + 1).astype(int))
