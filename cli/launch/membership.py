"""The members of a job, as reported to the launcher: which have started, joined and ended, and whether others go on."""

from collections.abc import Iterable
from typing import NamedTuple

from easyscale.cli.launch.ending import Ending
from easyscale.progress import Leave

__all__ = ["Membership", "Process"]


class Process(NamedTuple):
    """One process of a rank: number 0 is the original, later ones were started to replace it.

    Several may run at once if the rank that started a replacement has failed.
    """

    rank: int
    number: int = 0


class Membership:
    """The processes of one job.

    The ranks of an elastic job decide themselves which of them go on. The launcher is notified later, and asks them to
    end only if it is sure.

    Args:
        workers: Int. Number of workers; ranks after them are servers. Defaults to `None`: there are no servers.
        least: Int. Minimum number of workers with which the job goes on after failures. Defaults to `None`: it does
            not go on.
        needed: The ranks without which the others never go on. Defaults to none.
        has_spares: Bool. Whether there are spares, which wait to replace workers, and end when all ranks have ended.
            Defaults to `False`.

    Attributes:
        hosts: Dict from rank to host, for each process that has started and has not reported its end.
    """

    def __init__(
        self,
        workers: int | None = None,
        least: int | None = None,
        needed: Iterable[int] = (),
        has_spares: bool = False,
    ):
        self.workers, self._least, self._needed = workers, least, {*needed}
        self._first_spare = workers if has_spares else None  # processes from this number on are spares
        self.hosts: dict[int, str] = {}
        self._members = {Process(rank) for rank in range(workers or 0)}
        self._running: set[Process] = set()
        self._begun: dict[int, int] = {}  # rank -> number of processes that have started

    @property
    def is_elastic(self) -> bool:
        return self._least is not None

    @property
    def is_over(self) -> bool:
        """True if there are spares, and all ranks have ended. Spares may not know if no rank has ever started MPI."""
        return self._first_spare is not None and len(self._begun) >= self._first_spare and not self._running

    def begin(self, rank: int) -> Process:
        """Record that a process has started as this rank."""
        process = Process(rank, self._begun.get(rank, 0))
        self._begun[rank] = process.number + 1
        self._running.add(process)
        return process

    def is_spare(self, rank: int) -> bool:
        """Return whether a process of this number is a spare."""
        return self._first_spare is not None and rank >= self._first_spare

    def has_begun(self, rank: int | None) -> bool:
        return rank in self._begun

    def is_running(self, process: Process) -> bool:
        return process in self._running

    def is_member(self, process: Process) -> bool:
        """Return whether a process is an original one, or a replacement that has joined the others."""
        return process.number == 0 or process in self._members

    def join(self, process: Process) -> None:
        """Record that a replacement has joined the others."""
        self._members.add(process)

    def end(self, process: Process) -> None:
        self.hosts.pop(process.rank, None)
        self._running.discard(process)

    def lose(self, process: Process, ending: Ending) -> tuple[bool, str]:
        """Return whether the others may go on without a process that has ended, and a message about it."""
        if self._least is None or not ending.is_sudden or ending.rank in self._needed:
            return False, ""
        if not ending.met:
            return False, "workers go on without another when all have begun with MPI, not before"
        was_member = self.is_member(process)
        self._members.discard(process)
        if ending.leave == Leave.UNNEEDED:
            return True, ""
        how = ending.describe(on_this_host=False, workers=self.workers)
        if not was_member:
            return True, f"{how} before it had joined the others"
        left = len(self._members)
        verb = "is" if left == 1 else "are"
        if left >= self._least:
            told = f"{how}; {left} of {self.workers} workers {verb} left"
            return True, told if ending.in_fit else f"{told}. Outside of fit() the job ends when one of them needs it"
        if any(not self.is_member(running) for running in self._running):  # one may have joined, not yet reported
            return True, f"{how}, while another one joins"
        return False, f"{left} worker{'s' * (left != 1)} {verb} left, fewer than --min-workers {self._least}"
