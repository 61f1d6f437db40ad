"""Ends a job: first asks it to end, then kills what has not ended after some time."""

import signal
import time
from collections.abc import Callable
from typing import Protocol

__all__ = ["Shutdown"]

_PATIENCE = 2.0  # seconds for mpirun to end the job after a rank has failed
_GRACE = 5.0  # seconds for ranks to end after a signal
_LAST_STEP = 20.0  # seconds for ranks to write a checkpoint after a SIGTERM; Slurm and Kubernetes allow 30


class _Mpirun(Protocol):
    @property
    def has_ended(self) -> bool: ...

    def send_signal(self, number: int) -> None: ...

    def ask_others(self) -> bool: ...

    def kill(self) -> None: ...


class _Rank(Protocol):
    def send_signal(self, number: int) -> bool: ...


class Shutdown:
    """Ends mpirun and the ranks on this host in stages. Ranks on other hosts end with mpirun.

        SIGTERM            sent to the ranks on this host or, if there are none, on others; 20 s later to mpirun. One
                           rank is enough, because all end together
        any other signal   mpirun receives SIGINT or SIGTERM; 5 s later all are killed
        a second signal    all are killed

    Args:
        mpirun: The process that starts the ranks.
        clock: Callable. Returns seconds. Defaults to `time.monotonic`.

    Attributes:
        signals: List of the signals that have asked this launcher to end.
        ranks: List of the ranks on this host that have started.
    """

    def __init__(self, mpirun: _Mpirun, clock: Callable[[], float] = time.monotonic):
        self._mpirun, self._clock = mpirun, clock
        self._due: tuple[float, Callable[[], None]] | None = None  # when to do what, if the job has not ended by then
        self.signals: list[int] = []
        self.ranks: list[_Rank] = []

    @property
    def has_begun(self) -> bool:
        """True if mpirun has ended, or a signal has asked this launcher to end."""
        return self._mpirun.has_ended or bool(self.signals)

    def take_signal(self, number: int) -> None:
        """Handle a signal that asks this launcher to end."""
        self.signals.append(number)
        if len(self.signals) > 1:
            self.kill()
        elif number == signal.SIGTERM and (self._signal_ranks(number) or self._mpirun.ask_others()):
            # If mpirun received the SIGTERM, it would kill them a second later.
            self._due = self._clock() + _LAST_STEP, self.stop
        else:
            self.stop(signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Ask mpirun to end the job; kill everything later if it has not."""
        self._due = self._clock() + _GRACE, self.kill
        self._mpirun.send_signal(number)

    def stop_soon(self) -> None:
        """Ask mpirun to end the job after a rank has failed, unless it soon does so by itself."""
        self._act_later(self.stop)

    def kill_soon(self) -> None:
        """Kill what does not soon end by itself."""
        self._act_later(self.kill)

    def kill(self) -> None:
        """Kill mpirun and the remaining ranks on this host."""
        self._mpirun.kill()
        self._signal_ranks(signal.SIGKILL)

    def tick(self) -> None:
        """Do what is due. Call this a few times a second."""
        if self._due is not None and self._clock() > self._due[0]:
            _, act = self._due
            self._due = None
            act()

    def _act_later(self, act: Callable[[], None]) -> None:
        """Schedule an action in `_PATIENCE` seconds, unless another one is due earlier."""
        when = self._clock() + _PATIENCE
        if self._due is None or when < self._due[0]:
            self._due = when, act

    def _signal_ranks(self, number: int) -> bool:
        """Send a signal to the ranks on this host; return whether there are any."""
        return sum(rank.send_signal(number) for rank in self.ranks) > 0
