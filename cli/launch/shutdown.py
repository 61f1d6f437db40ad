"""How a job is ended: first it is asked to, and what has not ended after some time is killed."""

import signal
import time
from collections.abc import Callable
from typing import Protocol

__all__ = ["Shutdown"]

_PATIENCE = 2.0  # seconds that mpirun has to end the job when a rank has failed
_GRACE = 5.0  # seconds that ranks have to end after a signal
_LAST_STEP = 20.0  # seconds that ranks have to write a checkpoint after a SIGTERM; Slurm and Kubernetes give 30


class _Mpirun(Protocol):
    @property
    def has_ended(self) -> bool: ...

    def send_signal(self, number: int) -> None: ...

    def ask_others(self) -> bool: ...

    def kill(self) -> None: ...


class _Rank(Protocol):
    def send_signal(self, number: int) -> bool: ...


class Shutdown:
    """Ends mpirun and the ranks of this host, step by step; each other host's end with its mpirun.

        SIGTERM            ranks get it, and have 20 s; then mpirun gets it. One rank is enough, as all end together:
                           of this host, or else of others
        any other signal   mpirun gets SIGINT or SIGTERM, and has 5 s; then all are killed
        a second signal    all are killed

    Args:
        mpirun: What starts the ranks.
        clock: Callable. Returns seconds. Defaults to `time.monotonic`.

    Attributes:
        signals: List of the signals by which this launcher was asked to end.
        ranks: List of the ranks of this host that have started.
    """

    def __init__(self, mpirun: _Mpirun, clock: Callable[[], float] = time.monotonic):
        self._mpirun, self._clock = mpirun, clock
        self._due: tuple[float, Callable[[], None]] | None = None  # what is to be done if the job has not ended by then
        self.signals: list[int] = []
        self.ranks: list[_Rank] = []

    @property
    def has_begun(self) -> bool:
        """Whether mpirun has ended, or was asked to by whoever started the launcher."""
        return self._mpirun.has_ended or bool(self.signals)

    def take_signal(self, number: int) -> None:
        """Take in that this launcher was asked to end."""
        self.signals.append(number)
        if len(self.signals) > 1:
            self.kill()
        elif number == signal.SIGTERM and (self._signal_ranks(number) or self._mpirun.ask_others()):
            # At a SIGTERM of its own mpirun would kill them a second later.
            self._due = self._clock() + _LAST_STEP, self.stop
        else:
            self.stop(signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Ask mpirun to end the job, and see to it if it does not."""
        self._due = self._clock() + _GRACE, self.kill
        self._mpirun.send_signal(number)

    def stop_soon(self) -> None:
        """Ask mpirun to end the job unless it does so by itself, because a rank has failed."""
        self._act_later(self.stop)

    def kill_soon(self) -> None:
        """Kill what has not ended by itself."""
        self._act_later(self.kill)

    def kill(self) -> None:
        """Kill mpirun and the ranks of this host that are still there."""
        self._mpirun.kill()
        self._signal_ranks(signal.SIGKILL)

    def tick(self) -> None:
        """Do what is due. To be called a few times a second."""
        if self._due is not None and self._clock() > self._due[0]:
            _, act = self._due
            self._due = None
            act()

    def _act_later(self, act: Callable[[], None]) -> None:
        """Do this after some patience, unless something is to be done before."""
        when = self._clock() + _PATIENCE
        if self._due is None or when < self._due[0]:
            self._due = when, act

    def _signal_ranks(self, number: int) -> bool:
        """Send a signal to the ranks of this host; return whether there are any."""
        return sum(rank.send_signal(number) for rank in self.ranks) > 0
