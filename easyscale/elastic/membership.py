"""Who takes part: the ranks of a communicator, and what changes them."""

import abc
import contextlib
from collections.abc import Sequence
from typing import Any, NoReturn, Protocol

from easyscale.elastic.members import Change

__all__ = ["Change", "FixedMembership", "Kept", "Membership"]

_DATA_TAG = 1  # words have others, below the first of an elastic job


class Kept(Protocol):
    """A request whose buffer is kept until it is complete."""

    @property
    def is_complete(self) -> bool: ...


class Membership(abc.ABC):
    """The ranks of a communicator.

    A process keeps its world rank, its number among all processes of the job, for good; when ranks have failed its
    rank may be another.

    Attributes:
        rank: Int. This process's number.
        servers: Int. The number of ranks, the last ones, that only serve.
        world_ranks: List. The world rank of each rank, in the order of ranks.
        initial_ranks: List. For each rank the number that it had at the start; of one that replaces another, that
            one's.
        initial_size: Int. The number of ranks of the job at the start, among which these numbers are.
        tag: Int. Of these ranks' messages: another one whenever they have changed.
        is_elastic: Bool. Whether ranks that have failed can be left out, by `regroup`. What waits for one that has
            failed raises `LostError` then.
        least_workers: Int. With fewer workers an elastic job ends.
        keeps_global_batch: Bool. Whether data are divided anew when workers have failed, or come.
        respawns: Bool. Whether ranks that have failed are replaced.
        is_joining: Bool. Whether this process replaces a rank and has not joined the others yet; see `join`.
        rehearses: Bool. Whether it is in `rehearsing()`.
        note: What the others have noted for it.
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
        """This rank, for messages of errors: by the number that it had at the start, among the ranks of then."""
        return f"[rank {self.initial_ranks[self.rank]} of {self.initial_size}]"

    @property
    @abc.abstractmethod
    def has_lost(self) -> bool:
        """Whether there are fewer ranks than at the start."""

    @property
    @abc.abstractmethod
    def replaces(self) -> bool:
        """Whether, on the first rank, ranks that fail are still replaced."""

    def begin_fit(self) -> int:
        """Return 1 in the first `fit()` of all ranks, then 2, ..."""
        self._fits += 1
        return self._fits

    # Ranks that fail

    @abc.abstractmethod
    def is_in_vain(self, notices: bool) -> bool:
        """Return whether it makes no sense to wait, as a rank has failed. See `Wait` for `notices`."""

    @abc.abstractmethod
    def keep(self, request: Kept) -> None:
        """Keep a request and its buffer although nobody waits for it any more, because a rank has failed."""

    @abc.abstractmethod
    def revoke(self) -> None:
        """Have everything raise `LostError` that any rank waits for, or will, until it regroups."""

    @abc.abstractmethod
    def regroup(self, again: bool = False) -> Change:
        """Leave out the ranks that have failed, and give the others new numbers. They must all call this alike.

        The ranks that are left keep their order.

        Args:
            again: Bool. Whether this rank could not go on with what all ranks did. Defaults to `False`.
        """

    # Others in their place

    @abc.abstractmethod
    def replace_lost(self, note: Any) -> str | None:
        """On the first rank: have others run the script in the place of ranks that were left out.

        Args:
            note: What they are told, for JSON.

        Returns:
            What the user should know: that from now on none is replaced any more.
        """

    @abc.abstractmethod
    def ready(self, purpose: Any) -> list[tuple[int, int]]:
        """On the first rank: return who has called `join(purpose)`, to be given to `admit` on all ranks."""

    @abc.abstractmethod
    def admit(self, newcomers: list[tuple[int, int]]) -> None:
        """Let others take part from now on. All ranks must call this alike."""

    # What such a process does itself

    @abc.abstractmethod
    def wait_for_call(self) -> int:
        """Sleep until this spare is to replace a rank, and return its number. If the job is over, this ends it."""

    @abc.abstractmethod
    def rehearsing(self) -> contextlib.AbstractContextManager:
        """Return a context in which a process that `is_joining` does what all do as if the others did the same."""

    @abc.abstractmethod
    def check_rehearsal(self) -> None:
        """Raise an `EasyScaleError` if this process, which `is_joining`, sends or receives outside of `rehearsing`."""

    @abc.abstractmethod
    def join(self, purpose: Any) -> bool:
        """Take part from now on, when the others have admitted this process.

        Args:
            purpose: What they do, for JSON.

        Returns:
            Whether they did. If they do something else, `note` says what.
        """

    # The end

    @abc.abstractmethod
    def end_if_over(self) -> None:
        """End this process if it replaces a rank, has not joined, and is not needed any more."""

    @abc.abstractmethod
    def answer(self) -> None:
        """As a rank that has left, and decides who takes part: regroup those who come, without it."""

    @abc.abstractmethod
    def dismiss(self) -> None:
        """Let spares that have not joined end, if this rank decides that."""


class FixedMembership(Membership):
    """Ranks that stay as they are: if one fails, the job ends.

    Args:
        rank: Int. This process's number.
        size: Int. The number of ranks.
        servers: Int. How many of them only serve. Defaults to `0`.
        initial_ranks: For each rank the number that errors call it by. Defaults to `None`: its own.
        initial_size: Int. How many ranks there are of which that is the number. Defaults to `None`: `size`.
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
        pass  # whoever waits for it has it

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
