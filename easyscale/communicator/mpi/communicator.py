"""The MPI communicator: point-to-point messages, and MPI's own collectives and windows where possible."""

import os
from collections.abc import Callable, Sequence

import numpy as np

from easyscale.communicator.common_memory import CommonMemory, RehearsedMemory
from easyscale.communicator.communicator import Communicator, Request, Window, as_bytes
from easyscale.communicator.group import Group
from easyscale.communicator.mpi.collectives import LibraryCollectives
from easyscale.communicator.mpi.job import Job
from easyscale.communicator.mpi.memory import IN_ORDER, allocate_shared
from easyscale.communicator.mpi.start import MPI, library, progress
from easyscale.communicator.mpi.transfer import Nothing, Transfer, is_one_message, messages
from easyscale.communicator.mpi.waiting import Waiting
from easyscale.communicator.wait import Wait
from easyscale.elastic.elastic_membership import ElasticMembership
from easyscale.elastic.membership import FixedMembership
from easyscale.errors import LaunchError

__all__ = ["Mpi"]


class Mpi(Communicator):
    """The ranks of an MPI communicator.

    Args:
        intra: `mpi4py.MPI.Intracomm`. Nothing else may use it.
        job: `Job` of these ranks.
        servers: Int. The number of ranks, the last ones, that only serve. Defaults to `0`.
        original: `Mpi` of the same ranks, if this is a duplicate. Defaults to `None`.
    """

    def __init__(self, intra: MPI.Intracomm, job: Job, servers: int = 0, original: "Mpi | None" = None):
        super().__init__()
        self._intra, self._job = intra, job
        self.progress, self.host, self.library = progress, os.uname().nodename, library()
        if original is not None:
            self.sent = original.sent
        self._own_collectives: LibraryCollectives | None = None
        if job.elastic is not None:
            self.membership = ElasticMembership(job.elastic, servers, self._renumber, original is not None)
        else:
            self.membership = FixedMembership(intra.rank, intra.size, servers)
        self._waiting = Waiting(self.membership, job.departures, progress)
        if job.elastic is None:
            self._own_collectives = LibraryCollectives(intra, self._waiting)
        self._renumber()

    def _renumber(self) -> None:
        """Update rank, size and nodes from the membership."""
        self.rank, self.size, self.servers = self.membership.rank, self.membership.size, self.membership.servers
        nodes: dict[int, list[int]] = {}
        for rank, world_rank in enumerate(self.membership.world_ranks):
            nodes.setdefault(int(self._job.node_of[world_rank]), []).append(rank)
        self.nodes = list(nodes.values())
        own = self._own_node
        self.local_rank, self.local_size = own.index(self.rank), len(own)

    @property
    def _own_node(self) -> list[int]:
        return next(node for node in self.nodes if self.rank in node)

    def duplicate(self) -> "Mpi":
        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            raise LaunchError(
                "MPI must be initialised with the thread level `multiple`: servers answer while workers compute. "
                "Set `mpi4py.rc.thread_level = 'multiple'` before mpi4py is first imported"
            )
        return Mpi(self._intra.Dup(), self._job, self.servers, original=self)

    def isend(self, buffer: np.ndarray, to: int) -> Request:
        data, ranks = as_bytes(buffer), self.membership
        if ranks.is_joining:
            return self._rehearse()
        self.sent.add(data.size)
        action = f"sends to rank {ranks.initial_ranks[to]}"
        try:
            requests = [
                self._intra.Isend([part, MPI.BYTE], ranks.world_ranks[to], ranks.tag) for part in messages(data)
            ]
        except MPI.Exception as error:
            raise self._waiting.named(error, action) from None
        return self._keep(Transfer(self._waiting, action, requests, to))

    def ireceive(self, buffer: np.ndarray, source: int) -> Request:
        parts, ranks = messages(as_bytes(buffer)), self.membership
        if ranks.is_joining:
            buffer[...] = 0
            return self._rehearse()
        action = f"waits for rank {ranks.initial_ranks[source]}"
        try:
            requests = [self._intra.Irecv([part, MPI.BYTE], ranks.world_ranks[source], ranks.tag) for part in parts]
        except MPI.Exception as error:
            raise self._waiting.named(error, action) from None
        return self._keep(Transfer(self._waiting, action, requests, source, [part.size for part in parts]))

    def _rehearse(self) -> Request:
        """Return a no-op transfer while this process prepares to replace a rank."""
        self.membership.check_rehearsal()
        return Nothing()

    def _keep(self, transfer: Transfer) -> Transfer:
        self.membership.keep(transfer)
        return transfer

    def poll(self, done: Callable[[], bool], wait: Wait) -> None:
        self._waiting.poll(done, wait)

    def all_gather_rows(self, row: np.ndarray) -> np.ndarray:
        if self.membership.rehearses:
            return np.repeat(row[None], self.size, axis=0)
        own = self._own_collectives
        return super().all_gather_rows(row) if own is None else own.all_gather_rows(row)

    def broadcast(self, buffer: np.ndarray, root: int = 0) -> None:
        if not self.membership.rehearses:
            super().broadcast(buffer, root)

    def all_reduce(self, buffer: np.ndarray) -> None:
        own = self._own_collectives
        super().all_reduce(buffer) if own is None else own.all_reduce(buffer)

    def reduce_scatter(self, buffer: np.ndarray, bounds: np.ndarray) -> None:
        own = self._own_collectives
        if own is None or not is_one_message(buffer):
            return super().reduce_scatter(buffer, bounds)
        own.reduce_scatter(buffer, bounds)

    def all_gather(self, buffer: np.ndarray, bounds: np.ndarray) -> None:
        own = self._own_collectives
        if own is None or not is_one_message(buffer):
            return super().all_gather(buffer, bounds)
        own.all_gather(buffer, bounds)

    def allocate_shared(self, nbytes: int) -> Window:
        if not self.membership.is_elastic:
            return allocate_shared(self._job.node, nbytes, self._waiting)
        if self.membership.is_joining:
            return RehearsedMemory(nbytes, self.local_size)
        return self.allocate_shared_among(self._own_node, nbytes)

    def allocate_shared_among(self, ranks: Sequence[int], nbytes: int) -> Window:
        return CommonMemory(Group(self, ranks), nbytes, IN_ORDER)
