"""A communicator of some of another communicator's ranks."""

import functools
from collections.abc import Callable, Sequence

import numpy as np

from easyscale.communicator.communicator import Communicator, Request, Window
from easyscale.communicator.wait import Wait
from easyscale.elastic.membership import FixedMembership, Membership

__all__ = ["Group"]


class Group(Communicator):
    """Some ranks of another communicator, renumbered from 0. Their traffic is counted there.

    Args:
        communicator: The other `Communicator`. While the group is in use, no message may be sent through it from one
            rank of the group to another.
        ranks: The ranks of the group, in the order of their new numbers. This rank is one of them.
    """

    def __init__(self, communicator: Communicator, ranks: Sequence[int]):
        self._communicator, self._ranks = communicator, list(ranks)
        self.sent, self.progress, self.timeline = communicator.sent, communicator.progress, communicator.timeline
        self.rank, self.size = self._ranks.index(communicator.rank), len(self._ranks)
        within = [[self._ranks.index(rank) for rank in node if rank in self._ranks] for node in communicator.nodes]
        self.nodes = [node for node in within if node]
        local = next(node for node in self.nodes if self.rank in node)
        self.local_rank, self.local_size = local.index(self.rank), len(local)
        self.host, self.library = communicator.host, communicator.library

    @functools.cached_property
    def membership(self) -> Membership:
        whole = self._communicator.membership
        numbers = [whole.initial_ranks[rank] for rank in self._ranks]
        return FixedMembership(self.rank, self.size, initial_ranks=numbers, initial_size=whole.initial_size)

    def allocate_shared(self, nbytes: int) -> Window:
        node = next(node for node in self.nodes if self.rank in node)
        return self.allocate_shared_among(node, nbytes)

    def allocate_shared_among(self, ranks: Sequence[int], nbytes: int) -> Window:
        return self._communicator.allocate_shared_among([self._ranks[rank] for rank in ranks], nbytes)

    def isend(self, buffer: np.ndarray, to: int) -> Request:
        return self._communicator.isend(buffer, self._ranks[to])

    def ireceive(self, buffer: np.ndarray, source: int) -> Request:
        return self._communicator.ireceive(buffer, self._ranks[source])

    def poll(self, done: Callable[[], bool], wait: Wait) -> None:
        missing = wait.missing
        renumbered = missing and (lambda: [self._ranks[rank] for rank in missing()])
        self._communicator.poll(done, wait._replace(missing=renumbered))
