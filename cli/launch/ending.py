"""The cause of a job's end, from what the ranks report and what mpirun says."""

import os
import signal
from typing import NamedTuple

from easyscale.cli.launch.messages import Ended
from easyscale.progress import Leave
from easyscale.settings import RESTART

__all__ = ["Ending", "Endings"]


class Ending(NamedTuple):
    """The end of one rank. Unknown values are `None`.

    Attributes:
        rank: Int. Its number; `None` for the whole job.
        host: String. The host it ran on.
        signal: Int. The signal that killed it.
        code: Int. Its exit code, if no signal killed it.
        leave: Int, of `Leave`. How it left the other ranks.
        met: Bool. Whether all ranks had started MPI.
        when: Int. Time in nanoseconds, on a clock shared by all ranks.
        missed: Int. The rank that had ended while this one waited for it.
        in_fit: Bool. Whether it was in `fit()`.
        is_spare: Bool. Whether it was a spare, which waited to replace a rank.
    """

    rank: int | None = None
    host: str | None = None
    signal: int | None = None
    code: int | None = None
    leave: int = Leave.DONE
    met: bool = True
    when: int = 0
    missed: int | None = None
    in_fit: bool = True
    is_spare: bool = False

    @classmethod
    def reported(cls, rank: int, words: Ended, when: int) -> "Ending":
        """Return the ending that a rank's worker reports; `status` is as in `os.waitpid`."""
        status = words["status"]
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        code = None if number else os.WEXITSTATUS(status)
        if words["leave"] in (Leave.RAISED, Leave.UNNEEDED):  # it killed itself so that MPI notifies the others
            number, code = None, int(words["leave"] == Leave.RAISED)
        missed = words.get("missed", 0) - 1 if words.get("missed") else None
        in_fit = words.get("in_fit", True)
        return cls(rank, words["host"], number, code, words["leave"], words["met"], when, missed, in_fit)

    @property
    def is_sudden(self) -> bool:
        """True if the other ranks of an elastic job may survive this ending."""
        if self.leave in (Leave.RAISED, Leave.UNNEEDED):
            return True
        return self.leave != Leave.TOO_EARLY and (bool(self.signal) or self.is_early)

    @property
    def is_failure(self) -> bool:
        return bool(self.signal or self.code) or self.leave == Leave.TOO_EARLY

    @property
    def is_killed(self) -> bool:
        """True if the rank was killed, perhaps by mpirun, which kills ranks that do not end by themselves."""
        return self.signal == signal.SIGKILL and not self.is_cut_short

    @property
    def is_silent(self) -> bool:
        """True if the rank gave no cause of its own, e.g. because MPI ended it after the loss of another rank."""
        return self.leave == Leave.NONE or self.is_of_another

    @property
    def is_of_another(self) -> bool:
        """True if the rank ended because of another rank."""
        return self.leave == Leave.GAVE_UP or (self.signal == signal.SIGTERM and not self.is_cut_short)

    @property
    def exit_code(self) -> int:
        """The job's exit code if this ending is its cause: never 0."""
        return 128 + self.signal if self.signal and not self.is_cut_short else self.code or 1

    def describe(self, on_this_host: bool, workers: int | None = None) -> str:
        """Describe the ending in words.

        Args:
            on_this_host: Bool. Whether the rank was on this host.
            workers: Int. Number of workers; ranks after them are servers. Defaults to `None`: there are no servers.

        Example:

        >>> Ending(rank=1, host="a", signal=9).describe(on_this_host=False)
        'rank 1 on a was killed by signal 9 (Killed)'
        """
        host = os.uname().nodename if on_this_host else self.host
        if self.is_spare:
            return f"a spare (--spares) on {host} {self.how} before all had begun with MPI"
        is_server = self.rank is not None and workers is not None and self.rank >= workers
        rank = f"rank {self.rank}, a server," if is_server else f"rank {self.rank}"
        who = "the job" if self.rank is None else f"{rank} on {host}" if host else rank.rstrip(",")
        return f"{who} {self.how}"

    @property
    def how(self) -> str:
        if self.is_cut_short:
            return "ended while other ranks still needed it"
        if self.signal:
            return f"was killed by signal {self.signal} ({signal.strsignal(self.signal)})"
        if self.leave == Leave.RAISED:
            return "ended by an exception"
        return f"ended with exit code {self.code}" + " while other ranks still needed it" * self.is_early

    @property
    def is_cut_short(self) -> bool:
        """True if mpirun ended it while it was exiting, so that its own exit code is unknown."""
        return self.signal in (signal.SIGTERM, signal.SIGKILL) and self.leave == Leave.TOO_EARLY

    @property
    def is_early(self) -> bool:
        """True if it ended while others needed it, even unreported, e.g. by `os._exit(0)`."""
        return self.leave == Leave.TOO_EARLY or (self.leave == Leave.NONE and self.code == 0 and self.met)


class Endings:
    """The endings of a job's ranks, and which of them caused the job's end.

    Args:
        is_elastic: Bool. Whether ranks go on without failed ones. mpirun then kills none because of another. Defaults
            to `False`.
    """

    def __init__(self, is_elastic: bool = False):
        self._is_elastic = is_elastic
        self._failures: list[Ending] = []
        self._survived: list[Ending] = []  # endings after which the others went on, at least for a while
        self._latest: dict[int | None, Ending] = {}  # by rank
        self._is_well = False  # whether any rank has finished its work

    def add(self, ending: Ending, is_member: bool = True) -> None:
        """Record an ending that ends the job if it is a failure.

        Args:
            is_member: Bool. False for a replacement that had not joined the others. Defaults to `True`.
        """
        self._latest[ending.rank] = ending
        if ending.is_failure:
            self._failures.append(ending)
            return
        self._is_well |= is_member and ending.leave != Leave.MISSED
        if ending.is_early:
            self._survived.append(ending)

    def survive(self, ending: Ending) -> None:
        """Record an ending after which the others go on."""
        if ending.leave != Leave.UNNEEDED:
            self._survived.append(ending)

    @property
    def ends_job(self) -> bool:
        """True if a rank has failed and the others cannot go on without it."""
        return bool(self._failures)

    @property
    def is_success(self) -> bool:
        """True if the job, now that no rank is left, was successful."""
        return not self._failures and (self._is_well or not (self._is_elastic and self._survived))

    @property
    def asks_for_restart(self) -> bool:
        return any(ending.code == RESTART for ending in self._failures)

    def cause(self, said: Ending | None) -> Ending | None:
        """Return the ending that caused the job's end.

        Args:
            said: The ending according to mpirun.
        """
        found = self._first(said)
        missed = next(
            (ending.missed for ending in sorted(self._failures, key=_in_time) if ending.missed is not None), None
        )
        if found is None or missed is None or not (found.is_of_another or found.rank == missed):
            return found
        # It has left, perhaps without knowing that others needed it, or without reporting its end.
        left = self._latest.get(missed) or Ending(missed, found.host, signal.SIGTERM)
        return left._replace(leave=Leave.TOO_EARLY) if left.leave in (Leave.DONE, Leave.MISSED) else left

    def _first(self, said: Ending | None) -> Ending | None:
        failures, survived = (sorted(found, key=_in_time) for found in (self._failures, self._survived))
        if survived and all(ending.is_of_another for ending in failures):
            return survived[-1 if self._is_elastic else 0]
        if self._is_elastic and failures:
            return next((ending for ending in failures if not ending.is_of_another), failures[0])
        # A rank that ended while others needed it caused their failures.
        if early := [ending for ending in failures if ending.is_early]:
            return early[0]
        # mpirun kills ranks after another has ended. If the first one was killed, MPI ended the silent ones.
        if failures and failures[0].is_killed and all(ending.is_silent for ending in failures):
            return failures[0]
        # A killed rank may have been killed by mpirun because another had failed.
        if by_themselves := [ending for ending in failures if ending.signal not in (signal.SIGTERM, signal.SIGKILL)]:
            return by_themselves[0]
        if said is not None and said.rank is not None and said.signal != signal.SIGTERM:
            return said
        return failures[0] if failures else said


def _in_time(ending: Ending) -> tuple[int, int]:
    return ending.when, -1 if ending.rank is None else ending.rank
