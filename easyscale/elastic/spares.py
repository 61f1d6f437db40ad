"""Processes that wait to replace failed ranks.

They are started with the job, because Open MPI 5 may crash if a process fails while it joins a running job. A spare
sleeps, without having started the script, until it is called. Then it runs the script from the start, as the rank that
it replaces, and reports in `fit()` that it is ready. The chief admits it when all are between two epochs. If the chief
fails before, the spares that it has called end, and the next chief calls others.
"""

from collections.abc import Iterable
from typing import Any

from easyscale.elastic.departures import Departures
from easyscale.elastic.mail import Mail

__all__ = ["Spare", "Spares"]

_CALL_TAG, _READY_TAG, _OVER_TAG = 7, 8, 9
_IN_A_ROW = 3  # none is called any more after so many replacements that fail before they have joined


class Spares:
    """The spares as a rank sees them. The chief calls them; the others track who has joined, in case they become chief.

    Args:
        mail: `Mail` between all world ranks.
        departures: `Departures`.
        world_ranks: The world ranks of the spares.

    Attributes:
        note: A JSON value that each spare receives when it is called.
        count: Int. The number of spares at the start.
        joined: Set of the world ranks of the spares that have joined.
    """

    def __init__(self, mail: Mail, departures: Departures, world_ranks: Iterable[int]):
        self._mail, self._departures = mail, departures
        self._sleeping = list(world_ranks)
        self.count = len(self._sleeping)
        self.joined: set[int] = set()
        self._called: dict[int, int] = {}  # world rank of each that has not joined yet -> the rank that it replaces
        self._ready: dict[int, Any] = {}  # world rank -> what it is ready for
        self._failures = 0  # of called spares, since one last joined
        self._doubtful: set[int] | None = None  # the first called; an earlier chief may have called some of them
        self._is_over = not self._sleeping
        self.note: Any = None

    def replace(self, missing: Iterable[int], members: Iterable[int]) -> str | None:
        """Call a spare for each missing rank that has none; return a message for the user, or `None`.

        Args:
            missing: The ranks that are not members, by their numbers at the start.
            members: The world ranks of the members.
        """
        self.joined.update(world_rank for world_rank in members if world_rank in self._sleeping)  # before this one did
        failed = self._mail.failed
        gone = failed | self._departures.left | self.joined
        for world_rank in gone & self._called.keys():
            self._failures += world_rank in failed and world_rank not in (self._doubtful or ())
            del self._called[world_rank]
        self._sleeping = [world_rank for world_rank in self._sleeping if world_rank not in gone]
        if self._is_over:
            return None
        wanted = [rank for rank in missing if rank not in self._called.values()]
        if wanted and (self._failures >= _IN_A_ROW or not self._sleeping):
            why = "there is no spare left (--spares)"
            if self._failures >= _IN_A_ROW:
                why = f"{self._failures} replacements in a row have failed before they had joined"
            self._is_over = True
            return f"ranks that fail are not replaced any more: {why}"
        chosen = list(zip(wanted, self._sleeping, strict=False))
        if self._doubtful is None and chosen:
            self._doubtful = {world_rank for _, world_rank in chosen if self._mail.own > 0}
        for rank, world_rank in chosen:
            self._sleeping.remove(world_rank)
            self._called[world_rank] = rank
            self._mail.send(world_rank, _CALL_TAG, [rank, self.note])
        return None

    def ready(self, purpose: Any) -> list[tuple[int, int]]:
        """Return, for each spare that is ready, the number of the rank that it replaces and its world rank.

        Args:
            purpose: What they have to be ready for. A spare that is ready for something else is called again.
        """
        while (word := self._mail.hear(_READY_TAG)) is not None:
            self._ready[word[0]] = word[1]
        failed = self._mail.failed
        found = []
        for world_rank, ready_for in list(self._ready.items()):
            if world_rank in failed or ready_for != purpose:
                del self._ready[world_rank]
                self._mail.send(world_rank, _CALL_TAG, [self._called.get(world_rank), self.note])
            else:
                found.append((self._called[world_rank], world_rank))
        return found

    def have_joined(self, world_ranks: Iterable[int]) -> None:
        """Record that these spares have joined."""
        for world_rank in world_ranks:
            self._failures = 0
            self.joined.add(world_rank)
            self._called.pop(world_rank, None)
            self._ready.pop(world_rank, None)

    @property
    def go_on(self) -> bool:
        """True as long as failed ranks are still replaced."""
        return not self._is_over

    def dismiss(self) -> None:
        """Let all spares that have not joined end."""
        for world_rank in [*self._sleeping, *self._called]:
            self._mail.send(world_rank, _OVER_TAG)


class Spare:
    """A spare's own side.

    Args:
        mail: `Mail` between all world ranks.

    Attributes:
        caller: Int. The world rank that has called it. Only defined after a call.
    """

    def __init__(self, mail: Mail):
        self._mail = mail
        self._caller: int | None = None

    @property
    def caller(self) -> int:
        assert self._caller is not None, "this process has not been called"
        return self._caller

    def hear_call(self) -> tuple[int, Any] | None:
        """Return the rank to replace and the note, or `None` if this process has not been called."""
        word = self._mail.hear(_CALL_TAG, self._caller)
        if word is None or word[0] in self._mail.failed:
            return None
        self._caller, (rank, note) = word
        return rank, note

    def say_ready(self, purpose: Any) -> None:
        """Report to the caller that this process can take part."""
        self._mail.send(self.caller, _READY_TAG, purpose)

    @property
    def is_over(self) -> bool:
        """True if it has been announced that all ranks have ended."""
        return self._mail.hear(_OVER_TAG) is not None

    @property
    def is_abandoned(self) -> bool:
        """True if the rank that has called this process has failed: no other rank knows of it."""
        return self._caller in self._mail.failed
