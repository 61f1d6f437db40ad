"""The members of an elastic job, agreed on again whenever a rank has failed or its replacement joins.

MPI could make a smaller communicator. But Open MPI 5 crashes if another rank fails while it does, and cannot make a
larger one. So there is one permanent communicator with all processes that there will ever be; a process's number in it
is its world rank. The ranks among them are numbered here. Messages carry the number of the generation, so that messages
in transit when ranks regroup are not mistaken for others.

The first member, in the order of joining, that has not failed decides. Every rank that regroups reports to it. When it
has heard from all that have neither failed nor left, it sends them the new members. If it fails before all have
received them, the next one decides. By then some may be a generation ahead: each reports the members that it knows of,
and those of the latest generation hold. If all ranks that knew of a newcomer have failed, and the others have already
gone on, it reports as a stranger and is told that it is not a member.
"""

import time
from collections.abc import Sequence
from typing import NamedTuple

from easyscale.elastic.departures import Departures
from easyscale.elastic.mail import Mail

__all__ = ["Change", "Members"]

_COME_TAG, _MEMBERS_TAG, _INTERRUPT_TAG = 4, 5, 6
_NAP_SECONDS, _LONG_NAP_SECONDS = 0.0002, 0.005


class Change(NamedTuple):
    """A change of the members.

    Attributes:
        lost: List of the ranks that have failed, by their old numbers.
        joined: List of the ranks that have joined, by their new numbers.
        again: Bool. Whether some rank has to repeat what it had begun.
    """

    lost: list[int]
    joined: list[int]
    again: bool


class Members:
    """The world ranks of the members. Their ranks are in the order of joining: newcomers come last.

    Args:
        mail: `Mail` between all world ranks.
        departures: `Departures`.
        count: Int. The number of ranks at the start, which have the first world ranks.

    Attributes:
        world_ranks: List. The world rank of each rank, in the order of ranks.
        initial_ranks: List. For each rank, its number at the start; for a replacement, that of the rank it replaces.
        generation: Int. The number of changes so far.
    """

    def __init__(self, mail: Mail, departures: Departures, count: int):
        self._mail, self._departures = mail, departures
        self.world_ranks, self.initial_ranks = list(range(count)), list(range(count))
        self.generation = 0
        self._interrupted_in = -1  # the last generation in which some rank could not go on
        self._came: dict[int, bool] = {}  # world rank of each that has come to regroup -> its `again`
        self._latest: tuple[int, list[list[int]]] = (-1, [])  # the latest generation that they know, and its members

    @property
    def _decider(self) -> int:
        # Newcomers come last, so all agree, even ranks that do not know of a newcomer yet.
        failed = self._mail.failed
        return next((world_rank for world_rank in self.world_ranks if world_rank not in failed), self._mail.own)

    @property
    def decides(self) -> bool:
        """True if this rank decides on the members."""
        return self._mail.own == self._decider

    # Interruptions

    def interrupt(self) -> None:
        """Interrupt what all ranks are doing together."""
        if self._interrupted_in < self.generation:
            self._interrupted_in = self.generation
            for world_rank in self.world_ranks if self.decides else [self._decider]:
                if world_rank != self._mail.own:
                    self._mail.send(world_rank, _INTERRUPT_TAG, self.generation)

    @property
    def are_interrupted(self) -> bool:
        """True if a rank has failed or has interrupted the others, until they regroup."""
        while (word := self._mail.hear(_INTERRUPT_TAG)) is not None:
            if word[1] == self.generation:
                self.interrupt()
            self._interrupted_in = max(self._interrupted_in, word[1])
        if self.decides and self._hear_who_came():  # a rank of another generation
            self.interrupt()
        return self._interrupted_in >= self.generation or not self._mail.failed.isdisjoint(self.world_ranks)

    def _hear_who_came(self) -> bool:
        """Record the ranks that have come to regroup; return whether one of them is of another generation."""
        differs = False
        while (word := self._mail.hear(_COME_TAG)) is not None:
            world_rank, (generation, again, members) = word
            if world_rank not in self.world_ranks and generation <= self.generation:
                refused = {"generation": self.generation, "members": self._members, "failed": [], "again": False}
                self._mail.send(world_rank, _MEMBERS_TAG, refused)
                continue
            self._came[world_rank] = again
            differs |= generation != self.generation
            self._latest = max(self._latest, (generation, members))
        return differs

    # Changes

    def regroup(self, again: bool) -> Change:
        """Agree on the members from now on, without this rank if the others have gone on without knowing of it.

        All ranks that neither fail nor leave must call this.

        Args:
            again: Bool. Whether this rank could not go on.
        """
        started, asked = time.monotonic(), None
        while not self.decides:
            if asked != (decider := self._decider):
                asked = decider
                self._mail.send(decider, _COME_TAG, [self.generation, again, self._members])
            if (told := self.listen(decider)) is not None:
                return self._take(told)
            _nap(started)
        self._came[self._mail.own] = again
        while (told := self._decide()) is None:
            _nap(started)
        return self._take(told)

    @property
    def _members(self) -> list[list[int]]:
        return [list(both) for both in zip(self.initial_ranks, self.world_ranks, strict=True)]

    def _decide(self) -> dict | None:
        """Send the new members to all ranks and return the message, or `None` if not all have come yet."""
        failed = self._mail.failed
        if not failed.isdisjoint(self.world_ranks):
            self.interrupt()  # ranks that wait for a failed one have to come
        self._hear_who_came()
        generation, members = max(self._latest, (self.generation, self._members))
        if not {world_rank for _, world_rank in members} <= failed | self._departures.left | {*self._came}:
            return None
        came, self._came = self._came, {}
        kept = [
            [initial, world_rank] for initial, world_rank in members if world_rank in came and world_rank not in failed
        ]
        told = {"generation": generation + 1, "members": kept, "failed": list(failed), "again": any(came.values())}
        for _, world_rank in kept:
            if world_rank != self._mail.own:
                self._mail.send(world_rank, _MEMBERS_TAG, told)
        return told

    def answer(self) -> None:
        """Regroup the ranks that come, without this rank, if it has left and is the one that decides."""
        if self.world_ranks and self.decides:
            self._hear_who_came()
            if self._came:
                self.interrupt()
                if (told := self._decide()) is not None:
                    self._take(told)

    def admit(self, newcomers: Sequence[tuple[int, int]]) -> Change:
        """Make newcomers members. All ranks must call this with the same arguments; the newcomers `listen`.

        Args:
            newcomers: For each, the number of the rank that it replaces and its world rank.
        """
        members = [*self._members, *map(list, newcomers)]
        told = {"generation": self.generation + 1, "members": members, "failed": [], "again": False}
        if self.decides:
            for _, world_rank in newcomers:
                self._mail.send(world_rank, _MEMBERS_TAG, told)
        return self._take(told)

    def listen(self, decider: int) -> dict | None:
        """Return the message with the members from the rank that decides, or `None` if there is none."""
        word = self._mail.hear(_MEMBERS_TAG, decider)
        return None if word is None else word[1]

    def enter(self, told: dict) -> None:
        """Take part from now on, as one of the members in the message from `listen`."""
        self._take(told)

    def _take(self, told: dict) -> Change:
        before = self.world_ranks
        self.generation = told["generation"]
        self.initial_ranks, self.world_ranks = ([member[index] for member in told["members"]] for index in range(2))
        gone = {*told["failed"]} - {*self.world_ranks}
        lost = [rank for rank, world_rank in enumerate(before) if world_rank in gone]
        joined = [rank for rank, world_rank in enumerate(self.world_ranks) if world_rank not in before]
        return Change(lost, joined, told["again"])


def _nap(started: float) -> None:
    time.sleep(min(max(_NAP_SECONDS, (time.monotonic() - started) / 20), _LONG_NAP_SECONDS))
