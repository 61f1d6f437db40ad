"""Membership of an elastic job: leaves out ranks that fail and admits their replacements."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from easyscale.elastic.departures import Departures
from easyscale.elastic.ending import end_alone
from easyscale.elastic.mail import Mail
from easyscale.elastic.members import Change, Members
from easyscale.elastic.membership import Kept, Membership
from easyscale.elastic.spares import Spare, Spares
from easyscale.errors import EasyScaleError
from easyscale.progress import Leave, Progress

__all__ = ["ElasticJob", "ElasticMembership"]

_FIRST_TAG = 16  # plus the number of the generation
_KEPT = 256  # requests, before the completed ones are dropped
_NAP_SECONDS = 0.005
_SLEEP_SECONDS = 1.0  # between checks of a spare that is not needed yet; there may be hundreds of spares


class ElasticJob:
    """State of an elastic job that all communicators of this process share.

    Args:
        mail: `Mail` between all world ranks.
        departures: `Departures`.
        progress: `Progress` of this process.
        count: Int. The number of ranks at the start, which have the first world ranks.
        spares: Int. The number of processes after them, which are not ranks until they replace one.
        least_workers: Int. See `Membership`.
        keeps_global_batch: Bool. See `Membership`.
        finalize: Function without arguments. Finalises MPI in this process.
    """

    def __init__(
        self,
        mail: Mail,
        departures: Departures,
        progress: Progress,
        count: int,
        spares: int,
        least_workers: int,
        keeps_global_batch: bool,
        finalize: Callable[[], None],
    ):
        self.mail, self.departures, self.progress, self.count = mail, departures, progress, count
        self.least_workers, self.keeps_global_batch, self.finalize = least_workers, keeps_global_batch, finalize
        self.members = Members(mail, departures, count)
        self.spares = Spares(mail, departures, range(count, count + spares))
        self.spare = Spare(mail)


class ElasticMembership(Membership):
    """Ranks that are renumbered whenever some have failed or replacements have joined.

    Args:
        job: `ElasticJob`.
        servers: Int. The number of ranks, the last ones, that only serve.
        renumber: Function without arguments. Called when the ranks have changed.
        is_duplicate: Bool. Whether another communicator of these ranks agrees on the members and this one follows it.
    """

    is_elastic = True

    def __init__(self, job: ElasticJob, servers: int, renumber: Callable[[], None], is_duplicate: bool = False):
        self._job, self._mail, self._members, self._spares = job, job.mail, job.members, job.spares
        self._renumber, self._is_duplicate, self.servers = renumber, is_duplicate, servers
        self.least_workers, self.keeps_global_batch = job.least_workers, job.keeps_global_batch
        self.initial_size = job.count
        self.respawns = job.spares.count > 0
        self.is_joining = job.mail.own not in job.members.world_ranks
        self._under_way: list[Kept] = []
        self._abandoned: list[Kept] = []
        self._joins = threading.Lock()
        self._take()

    def _take(self, rank: int | None = None) -> None:
        """Take over the ranks from `Members`; until this process has joined, its rank is the one that it replaces."""
        self.world_ranks, self.initial_ranks = self._members.world_ranks, self._members.initial_ranks
        self.tag = _FIRST_TAG + self._members.generation
        self.rank = rank if rank is not None else 0 if self.is_joining else self.world_ranks.index(self._mail.own)

    def _change(self, rank: int | None = None) -> None:
        self._take(rank)
        self._renumber()

    # Failed ranks

    @property
    def has_lost(self) -> bool:
        return self.size < self._job.count

    def is_in_vain(self, notices: bool) -> bool:
        """See `Membership`. With servers, a rank goes on as long as the ranks that it waits for do."""
        if self._is_duplicate:
            return not (notices or self._mail.failed.isdisjoint(self.world_ranks))
        return self._members.are_interrupted

    def keep(self, request: Kept) -> None:
        self._under_way.append(request)
        if len(self._under_way) > _KEPT:
            self._under_way = [kept for kept in self._under_way if not kept.is_complete]

    def revoke(self) -> None:
        self._members.interrupt()

    def regroup(self, again: bool = False) -> Change:
        before, workers = self.world_ranks, self.size - self.servers
        change = None if self._is_duplicate else self._members.regroup(again)
        if self._mail.own not in self._members.world_ranks:
            end_alone(self._job.progress, Leave.UNNEEDED)
        world_ranks = self._members.world_ranks
        lost = (
            change.lost if change else [rank for rank, world_rank in enumerate(before) if world_rank not in world_ranks]
        )
        self.servers -= sum(rank >= workers for rank in lost)
        self._abandoned += self._under_way  # MPI may still access their buffers
        self._under_way = []
        self._change()
        return change or Change(lost, [], False)

    # Replacements

    @property
    def replaces(self) -> bool:
        return self._spares.go_on

    def replace_lost(self, note: Any) -> str | None:
        ranks_at_start = {*range(self._job.count)}
        ended = self._job.departures.left & {*ranks_at_start, *self._spares.joined}
        if self.rank > 0 or ended:  # once a rank has finished the script, none is replaced
            return None
        self._spares.note = note
        return self._spares.replace(sorted(ranks_at_start - {*self.initial_ranks}), self.world_ranks)

    def ready(self, purpose: Any) -> list[tuple[int, int]]:
        return self._spares.ready(purpose)

    def admit(self, newcomers: list[tuple[int, int]]) -> None:
        self._members.admit(newcomers)
        self._spares.have_joined(world_rank for _, world_rank in newcomers)
        self._change()

    # The replacement's own side

    def wait_for_call(self) -> int:
        while (call := self._job.spare.hear_call()) is None:
            self.end_if_over()
            time.sleep(_SLEEP_SECONDS)
        rank, self.note = call
        self._change(rank)
        return rank

    @contextlib.contextmanager
    def rehearsing(self) -> Iterator[None]:
        self.rehearses = True
        try:
            yield
        finally:
            self.rehearses = False

    def check_rehearsal(self) -> None:
        if not self.rehearses:
            raise EasyScaleError(
                f"a process that replaces rank {self.rank} joins the others in `fit()` with `Distribute`. Received: a "
                "message before that. Compute on each worker what the script needs before, or start without --respawn"
            )

    def join(self, purpose: Any) -> bool:
        self._job.spare.say_ready(purpose)
        while True:
            with self._joins:
                if (told := self._members.listen(self._job.spare.caller)) is not None:
                    self.is_joining = False
                    break
            if (call := self._job.spare.hear_call()) is not None:
                self.note = call[1]
                return False
            self._job.progress.moved()
            time.sleep(_NAP_SECONDS)
        self._members.enter(told)
        self._change()
        return True

    # The end

    def end_if_over(self) -> None:
        with self._joins:
            if not self.is_joining:
                return
            if self._job.spare.is_abandoned:  # `MPI_Finalize` would wait for the others, which go on
                end_alone(self._job.progress, Leave.UNNEEDED)
            if self._job.spare.is_over:
                self._job.progress.leave = Leave.DONE
                with self._mail.silence():
                    self._job.finalize()
                    os._exit(0)

    def answer(self) -> None:
        self._members.answer()

    def dismiss(self) -> None:
        if self._members.decides:
            self._spares.dismiss()
