"""Who takes part in a job, as the launcher is told: who has begun, ended, is replaced, and whether the others go on."""

from collections.abc import Iterable

from easyscale.cli.ending import Ending
from easyscale.progress import Leave

__all__ = ["Membership"]


class Membership:
    """The ranks of one job.

    The ranks of an elastic job decide themselves who goes on; the launcher hears of it later, and asks them to end only
    if it is sure.

    Args:
        workers: Int. The ranks from this number on are servers. Defaults to `None`: there are none.
        least: Int. The workers go on without those that fail, as long as there are so many. Defaults to `None`: they
            do not.
        needed: The ranks without which the others never go on. Defaults to none.
        has_spares: Bool. Whether there are processes that wait to replace workers, and end when all ranks have.
            Defaults to `False`.

    Attributes:
        hosts: Dict from the rank to the host of each worker process that has begun, and not told of its end.
    """

    def __init__(
        self,
        workers: int | None = None,
        least: int | None = None,
        needed: Iterable[int] = (),
        has_spares: bool = False,
    ):
        self.workers, self._least, self._needed, self._has_spares = workers, least, {*needed}, has_spares
        self.hosts: dict[int, str] = {}
        self._begun: set[int] = set()
        self._ended: set[int] = set()
        self._awaited: set[int] = set()  # those that are replaced by one that has not joined yet
        self._lost = 0  # workers without which the others go on

    @property
    def is_elastic(self) -> bool:
        return self._least is not None

    @property
    def is_over(self) -> bool:
        """Whether all ranks have ended. Spares may not know of it, if no rank has ever begun with MPI."""
        return self._has_spares and len(self._ended) >= self.workers and self._ended >= self._begun

    def begin(self, rank: int) -> None:
        """Take in that a process is this rank from now on; it replaces the one that was, if there was one."""
        if rank in self._begun:
            self._lost += rank not in self._ended | self._awaited  # its end has not been told
            self._awaited.add(rank)
            self._ended.discard(rank)
        self._begun.add(rank)

    def join(self, rank: int) -> None:
        """Take in that the process that replaces this rank has joined the others."""
        self._awaited.discard(rank)
        self._lost -= 1

    def is_awaited(self, rank: int) -> bool:
        return rank in self._awaited

    def end(self, rank: int) -> None:
        self.hosts.pop(rank, None)
        self._ended.add(rank)

    def lose(self, ending: Ending) -> tuple[bool, str]:
        """Return whether the others may go on without a rank that has ended, and what there is to say of it."""
        if self._least is None or not ending.is_sudden or ending.rank in self._needed:
            return False, ""
        if ending.leave == Leave.UNNEEDED:
            self._lost += ending.rank not in self._awaited
            return True, ""
        if not ending.met:
            return False, "workers go on without another when all have begun with MPI, not before"
        how = ending.describe(on_this_host=False, workers=self.workers)
        if ending.rank in self._awaited:
            return True, f"{how} before it had joined the others"
        self._lost += 1
        left = self.workers - self._lost
        verb = "is" if left == 1 else "are"
        if left >= self._least:
            return True, f"{how}; {left} of {self.workers} workers {verb} left"
        if self._awaited:  # one may have joined, and not told of it yet
            return True, f"{how}, while another one joins"
        return False, f"{left} worker{'s' * (left != 1)} {verb} left, fewer than --min-workers {self._least}"
