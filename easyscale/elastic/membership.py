"""The ranks of a communicator, and what changes them."""

import abc
import contextlib
from collections.abc import Sequence
from typing import Any, NoReturn, Protocol

from easyscale.elastic.members import Change

__all__ = ["Change", "FixedMembership", "Kept", "Membership"]

_DATA_TAG = 1  # control messages have other tags, below the first of an elastic job


class Kept(Protocol):
    """A request whose buffer is kept until it is complete."""

    @property
    def is_complete(self) -> bool: ...


class Membership(abc.ABC):
    """The ranks of a communicator.

    A process keeps its world rank, its number among all processes of the job. Its rank may change when ranks have
    failed.

    Attributes:
        rank: Int. This process's number.
        servers: Int. The number of ranks, the last ones, that only serve.
        world_ranks: List. The world rank of each rank, in the order of ranks.
        initial_ranks: List. For each rank, its number at the start; for a replacement, that of the rank that it
            replaces.
        initial_size: Int. The number of ranks of the job at the start, to which `initial_ranks` refer.
        tag: Int. The tag of these ranks' messages: a new one whenever they change.
        is_elastic: Bool. Whether `regroup` can leave out failed ranks. Waiting for a failed rank then raises
            `LostError`.
        least_workers: Int. With fewer workers an elastic job ends.
        keeps_global_batch: Bool. Whether data are divided again when workers fail or join.
        respawns: Bool. Whether failed ranks are replaced.
        is_joining: Bool. Whether this process replaces a rank and has not joined the others yet; see `join`.
        rehearses: Bool. Whether it is in `rehearsing()`.
        note: The note that the chief has sent it with the call to replace a rank.
    """

    rank: int
    servers: int
    world_ranks: list[int]
    initial_ranks: list[int]
    initial_size: int
    tag: int = _DATA_TAG
    is_elastic: bool = False
    least_workers: int = 1
    keeps_global_batch: bool = False
    respawns: bool = False
    is_joining: bool = False
    rehearses: bool = False
    note: Any = None
    _fits: int = 0

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.world_ranks)

    @property
    def name(self) -> str:
        """This rank's name in error messages, by its number and the number of ranks at the start."""
        return f"[rank {self.initial_ranks[self.rank]} of {self.initial_size}]"

    @property
    @abc.abstractmethod
    def has_lost(self) -> bool:
        """True if there are fewer ranks than at the start."""

    @property
    @abc.abstractmethod
    def replaces(self) -> bool:
        """True, on the first rank, as long as failed ranks are still replaced."""

    def begin_fit(self) -> int:
        """Count a `fit()` of all ranks; return its number, from 1."""
        self._fits += 1
        return self._fits

    # Failed ranks

    @abc.abstractmethod
    def is_in_vain(self, notices: bool) -> bool:
        """Return whether waiting is pointless because a rank has failed. See `Wait` for `notices`."""

    @abc.abstractmethod
    def keep(self, request: Kept) -> None:
        """Keep a request and its buffer alive, in case a rank fails and nobody waits for the request any more."""

    @abc.abstractmethod
    def revoke(self) -> None:
        """Make all waits, on all ranks, raise `LostError` until they regroup."""

    @abc.abstractmethod
    def regroup(self, again: bool = False) -> Change:
        """Leave out failed ranks and renumber the others. Collective: all remaining ranks must call this.

        The remaining ranks keep their order.

        Args:
            again: Bool. Whether this rank could not finish what all ranks were doing. Defaults to `False`.
        """

    # Replacements

    @abc.abstractmethod
    def replace_lost(self, note: Any) -> str | None:
        """Make spares run the script in place of ranks that were left out. For the first rank.

        Args:
            note: A JSON value to send them.

        Returns:
            A message for the user if from now on no rank is replaced any more, else `None`.
        """

    @abc.abstractmethod
    def ready(self, purpose: Any) -> list[tuple[int, int]]:
        """Return the processes that have called `join(purpose)`, for `admit` on all ranks. For the first rank."""

    @abc.abstractmethod
    def admit(self, newcomers: list[tuple[int, int]]) -> None:
        """Make newcomers members from now on. All ranks must call this with the same arguments."""

    # The replacement's own side

    @abc.abstractmethod
    def wait_for_call(self) -> int:
        """Sleep until this spare is called to replace a rank; return that rank. If the job is over, end the process."""

    @abc.abstractmethod
    def rehearsing(self) -> contextlib.AbstractContextManager:
        """Return a context in which a joining process runs what all ranks run, as if the others took part."""

    @abc.abstractmethod
    def check_rehearsal(self) -> None:
        """Raise an `EasyScaleError` if this joining process sends or receives outside of `rehearsing`."""

    @abc.abstractmethod
    def join(self, purpose: Any) -> bool:
        """Wait until the others have admitted this process, then take part.

        Args:
            purpose: A JSON value. What this process is ready for.

        Returns:
            Bool. Whether they have admitted it. If they are doing something else, `note` says what.
        """

    # The end

    @abc.abstractmethod
    def end_if_over(self) -> None:
        """End this process if it is a replacement that has not joined and is no longer needed."""

    @abc.abstractmethod
    def answer(self) -> None:
        """Regroup the others without this rank, if it has left and is the one that decides on the members."""

    @abc.abstractmethod
    def dismiss(self) -> None:
        """Let spares that have not joined end, if this rank is the one that decides."""


class FixedMembership(Membership):
    """Ranks that never change: if one fails, the job ends.

    Args:
        rank: Int. This process's number.
        size: Int. The number of ranks.
        servers: Int. The number of them that only serve. Defaults to `0`.
        initial_ranks: For each rank, its number in error messages. Defaults to `None`: its rank.
        initial_size: Int. The number of ranks to which these numbers refer. Defaults to `None`: `size`.
    """

    has_lost = replaces = False

    def __init__(
        self,
        rank: int,
        size: int,
        servers: int = 0,
        initial_ranks: Sequence[int] | None = None,
        initial_size: int | None = None,
    ):
        self.rank, self.servers = rank, servers
        self.world_ranks = list(range(size))
        self.initial_ranks = self.world_ranks if initial_ranks is None else list(initial_ranks)
        self.initial_size = size if initial_size is None else initial_size

    def is_in_vain(self, notices: bool) -> bool:
        return False

    def keep(self, request: Kept) -> None:
        pass  # the waiter holds it

    def revoke(self) -> None:
        _refuse()

    def regroup(self, again: bool = False) -> Change:
        _refuse()

    def replace_lost(self, note: Any) -> str | None:
        return None

    def ready(self, purpose: Any) -> list[tuple[int, int]]:
        return []

    def admit(self, newcomers: list[tuple[int, int]]) -> None:
        _refuse()

    def wait_for_call(self) -> int:
        _refuse()

    def rehearsing(self) -> contextlib.AbstractContextManager:
        _refuse()

    def check_rehearsal(self) -> None:
        _refuse()

    def join(self, purpose: Any) -> bool:
        _refuse()

    def end_if_over(self) -> None:
        pass

    def answer(self) -> None:
        pass

    def dismiss(self) -> None:
        pass


def _refuse() -> NoReturn:
    raise NotImplementedError("these ranks cannot go on when one has failed. Start the job with `--elastic`")
