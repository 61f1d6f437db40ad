"""Who takes part in an elastic job: agreed on anew whenever a rank has failed, or one that replaces it has come.

MPI could make a smaller communicator. But Open MPI 5 crashes if another rank fails while it does, and cannot make one
that is larger. So there is one communicator for good, with all processes that there will ever be: what each is called
there is its world rank. The ranks among them are numbered here. Messages carry the number of the generation: what was
under way when ranks regrouped is not taken for something else.

The first member, in the order in which they came, that has not failed decides. Whoever comes to
regroup tells it so; when it has heard from all that have neither failed nor left, it tells them who takes part from now
on. If it fails as well before all have heard, the next one decides. By then some may be a generation ahead: they say
whom they know of when they come, and what the latest generation knows holds. If all have failed who knew that one has
joined, and the others have gone on by then, it comes as a stranger and is told that it does not take part.
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
    """What has become of the ranks.

    Attributes:
        lost: List of the ranks that have failed, by the numbers that they had before.
        joined: List of the ranks that have come, by the numbers that they have now.
        again: Bool. Whether some rank has to do again what it had begun.
    """

    lost: list[int]
    joined: list[int]
    again: bool


class Members:
    """The world ranks of those that take part. Their ranks are in the order in which they came: newcomers are the last.

    Args:
        mail: `Mail` between all world ranks.
        departures: `Departures`.
        count: Int. The number of ranks at the start: the first world ranks are theirs.

    Attributes:
        world_ranks: List. The world rank of each rank, in the order of ranks.
        initial_ranks: List. The number that each rank had at the start; of one that replaces another, that one's.
        generation: Int. How often ranks have regrouped.
    """

    def __init__(self, mail: Mail, departures: Departures, count: int):
        self._mail, self._departures = mail, departures
        self.world_ranks, self.initial_ranks = list(range(count)), list(range(count))
        self.generation = 0
        self._interrupted_in = -1  # the last generation in which some rank could not go on
        self._came: dict[int, bool] = {}  # who has come to regroup; whether it has to do something again
        self._latest: tuple[int, list[list[int]]] = (-1, [])  # generation and members that one of these knows of

    @property
    def _decider(self) -> int:
        # Whoever joins is behind all others, so all agree, also those that have not heard who has joined.
        failed = self._mail.failed
        return next((world_rank for world_rank in self.world_ranks if world_rank not in failed), self._mail.own)

    @property
    def decides(self) -> bool:
        """Whether this rank decides who takes part."""
        return self._mail.own == self._decider

    # Interruptions

    def interrupt(self) -> None:
        """Have all ranks come out of what they do together."""
        if self._interrupted_in < self.generation:
            self._interrupted_in = self.generation
            for world_rank in self.world_ranks if self.decides else [self._decider]:
                if world_rank != self._mail.own:
                    self._mail.send(world_rank, _INTERRUPT_TAG, self.generation)

    @property
    def are_interrupted(self) -> bool:
        """Whether a rank has failed, or some rank could not go on; until they regroup."""
        while (word := self._mail.hear(_INTERRUPT_TAG)) is not None:
            if word[1] == self.generation:
                self.interrupt()
            self._interrupted_in = max(self._interrupted_in, word[1])
        if self.decides and self._hear_who_came():  # from one that knows of another last change
            self.interrupt()
        return self._interrupted_in >= self.generation or not self._mail.failed.isdisjoint(self.world_ranks)

    def _hear_who_came(self) -> bool:
        """Take in who has come to regroup; return whether one of them is of another generation."""
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
        """Agree on who takes part from now on: not this rank, if the others have gone on without knowing of it.

        All that neither fail nor leave must call this.

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
        """If all have come, tell them who takes part from now on, and return it."""
        failed = self._mail.failed
        if not failed.isdisjoint(self.world_ranks):
            self.interrupt()  # whoever waits for one of them has to come
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
        """If this rank, which has left, is the one that decides: regroup those who come, without it."""
        if self.world_ranks and self.decides:
            self._hear_who_came()
            if self._came:
                self.interrupt()
                if (told := self._decide()) is not None:
                    self._take(told)

    def admit(self, newcomers: Sequence[tuple[int, int]]) -> Change:
        """Let others take part from now on. All ranks must call this alike; those others `listen`.

        Args:
            newcomers: For each the number of the rank that it replaces, and its world rank.
        """
        members = [*self._members, *map(list, newcomers)]
        told = {"generation": self.generation + 1, "members": members, "failed": [], "again": False}
        if self.decides:
            for _, world_rank in newcomers:
                self._mail.send(world_rank, _MEMBERS_TAG, told)
        return self._take(told)

    def listen(self, decider: int) -> dict | None:
        """Return what the rank that decides has told, or `None` if it has told nothing."""
        word = self._mail.hear(_MEMBERS_TAG, decider)
        return None if word is None else word[1]

    def enter(self, told: dict) -> None:
        """Take part from now on, as one of those that `listen` has told of."""
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
