"""Handles reports about the ranks: which have started, joined and ended, and whether the job goes on."""

import os
import signal
import time
from collections.abc import Callable

from easyscale.cli.launch import shared_memory
from easyscale.cli.launch.beginning import Beginning
from easyscale.cli.launch.ending import Ending, Endings
from easyscale.cli.launch.membership import Membership, Process
from easyscale.cli.launch.messages import Message, Stands
from easyscale.cli.launch.shutdown import Shutdown
from easyscale.cli.launch.stalls import Stalls
from easyscale.cli.launch.streams import Rank
from easyscale.cli.launch.watch import state_of
from easyscale.progress import Activity, Leave

__all__ = ["Supervisor"]

_LOST_SECONDS = 1.0  # that mpirun's report of a rank's end may arrive after its connection has closed


class Supervisor:
    """Tracks the state of each rank, and ends the job when it cannot go on.

    Args:
        membership: `Membership`. The members of the job, and whether ranks go on without others.
        stalls: `Stalls`. Detects ranks that wait too long for others.
        shutdown: `Shutdown`. Ends the job.
        say: Callable. Shows a line to the user.
        on_this_host: Bool. Whether all ranks run on this host, so that their clocks can be compared.

    Attributes:
        beginning: `Beginning`. The ranks that have started MPI.
        endings: `Endings`. The ranks that have ended, and how.
        is_stalled: Bool. Whether the job was ended because ranks had waited too long.
    """

    def __init__(
        self,
        membership: Membership,
        stalls: Stalls,
        shutdown: Shutdown,
        say: Callable[[str], None],
        on_this_host: bool,
    ):
        self._membership, self._stalls, self._shutdown = membership, stalls, shutdown
        self._say, self._on_this_host = say, on_this_host
        self.beginning = Beginning(membership.workers)
        self.endings = Endings(membership.is_elastic)
        self.is_stalled = False
        self._vanished: dict[Process, int] = {}  # process that ended without a report -> when that was noticed
        self._workers: dict[Process, int] = {}  # process of a rank on this host -> process id of its worker
        self._stopped: dict[Process, float] = {}  # those of them that are stopped -> since when
        self._looked_at = 0.0  # when they were last checked

    def begin(self, started: Rank) -> Process:
        """Handle the start of a rank's process, or of a spare, on this host."""
        if self._membership.is_spare(started.rank):
            return self.beginning.add_spare(started)
        process = self._membership.begin(started.rank)
        self._workers[process] = started.pid
        return process

    def hear(self, process: Process, message: Message) -> None:
        """Handle a message from a process's worker."""
        if self._membership.is_spare(process.rank):
            self._hear_spare(process, message)
        elif message["kind"] == "started":
            self._membership.hosts[process.rank] = message["host"]
        elif message["kind"] == "ended":
            self._look_for_vanished(seconds=0)  # they may be the reason for this end
            # Clocks of several hosts cannot be compared.
            when = message["when"] if self._on_this_host else time.monotonic_ns()
            self._end(process, Ending.reported(process.rank, message, when))
        elif message["kind"] == "moves" or message["kind"] == "stands":
            if self._membership.is_member(process):  # nobody waits for a process that has not joined
                self._stalls.hear(process.rank, message)
        elif message["kind"] == "begins":
            self.beginning.come(process.rank)
            self._look_for_missed()
        elif message["kind"] == "loads":
            self.beginning.load(process.rank)
        elif message["kind"] == "meets":
            self.beginning.is_over = True
        elif message["kind"] == "joined":
            self._membership.join(process)
            self._stalls.take_in(process.rank)

    def lose(self, process: Process) -> None:
        """Handle the loss of the connection to a process."""
        is_expected = self._membership.is_running(process) or process in self.beginning.spares
        if self._membership.is_elastic and is_expected:
            self._vanished[process] = time.monotonic_ns()

    def tick(self) -> None:
        """Look for ranks that wait too long, are stopped, or have vanished. Call this a few times a second."""
        self._look_for_stopped()
        self._look_for_stalls()
        self._look_for_vanished()

    @property
    def _is_ending(self) -> bool:
        return self._shutdown.has_begun or self.endings.ends_job or self.is_stalled

    def _hear_spare(self, process: Process, message: Message) -> None:
        if message["kind"] == "called":
            self.beginning.remove_spare(process)
        elif message["kind"] == "ended":
            self._end_spare(process, Ending.reported(process.rank, message, message["when"]))

    def _end_spare(self, process: Process, ending: Ending) -> None:
        """Handle the end of a spare: the job cannot start MPI without it, but later the chief takes another one."""
        self.beginning.remove_spare(process)
        if ending.is_failure and not (ending.met or self._is_ending or self._membership.is_over):
            self._fail(ending._replace(is_spare=True), is_member=False)

    def _end(self, process: Process, ending: Ending) -> None:
        was_member = self._membership.is_member(process)
        self._membership.end(process)
        self._workers.pop(process, None)
        if self._membership.is_over:
            self._shutdown.kill_soon()
        goes_on = self._goes_on(process, ending)
        if was_member and goes_on:
            self._stalls.lose(process.rank)
        elif was_member:
            self._stalls.end(process.rank, f"on {ending.host} {ending.how}")
        if goes_on:
            self.endings.survive(ending)
        elif ending.is_failure:
            self._fail(ending, was_member)
        else:
            self.endings.add(ending, was_member)
            self.beginning.end(ending)
            self._look_for_missed()

    def _goes_on(self, process: Process, ending: Ending) -> bool:
        """Return whether the others may go on without a rank; tell the user so, or that too few are left."""
        if self._is_ending:
            return False
        goes_on, why = self._membership.lose(process, ending)
        if why:
            self._say(f"easyscale: {why}")
        return goes_on

    def _fail(self, ending: Ending, is_member: bool = True) -> None:
        """End the job because of this ending."""
        if ending.signal == signal.SIGBUS and self._on_this_host and (shortage := shared_memory.shortage()):
            self._say(f"easyscale: {shortage}")
        self.endings.add(ending, is_member)
        self._shutdown.stop_soon()

    def _look_for_missed(self) -> None:
        """End the job if ranks wait to start MPI, and another has ended without doing so."""
        missed = self.beginning.missed
        if missed is not None and not self._is_ending:
            self._fail(missed)

    def _look_for_stalls(self) -> None:
        if self.is_stalled:
            return
        for line in self._stalls.report():
            self._say(line)
        if self._stalls.is_over:
            self.is_stalled = True
            self._shutdown.stop()

    def _look_for_stopped(self) -> None:
        """Report stopped workers on this host as if their ranks were stopped: nothing else watches them."""
        now = time.monotonic()
        if not self._stalls.timeout or now - self._looked_at < 1.0:
            return
        self._looked_at = now
        for process, pid in self._workers.items():
            if state_of(pid) != "T":
                if self._stopped.pop(process, now) + self._stalls.timeout < now:
                    self._stalls.hear(process.rank, {"kind": "moves"})
            elif (idle := now - self._stopped.setdefault(process, now)) >= self._stalls.timeout:
                self._stalls.hear(process.rank, _stopped_worker(pid, idle))

    def _look_for_vanished(self, seconds: float = _LOST_SECONDS) -> None:
        """Handle workers that were killed along with their ranks, but not by mpirun when it ends the job.

        Args:
            seconds: Float. How long ago they must have vanished. Defaults to the longest delay of mpirun's report.
        """
        for process, when in list(self._vanished.items()):
            if time.monotonic_ns() - when >= 1e9 * seconds:
                del self._vanished[process]
                ending = Ending(process.rank, os.uname().nodename, signal.SIGKILL, leave=Leave.NONE, when=when)
                if process in self.beginning.spares:
                    self._end_spare(process, ending._replace(met=self.beginning.is_over))
                elif not self._is_ending:
                    self._end(process, ending)


def _stopped_worker(pid: int, idle: float) -> Stands:
    """Return the message about a rank whose worker has been stopped for `idle` seconds."""
    return {
        "kind": "stands",
        "host": os.uname().nodename,
        "pid": pid,
        "connected": True,
        "waits": [],
        "phase": 0,
        "step": 0,
        "exchanges": 0,
        "activity": Activity.STEPS,
        "idle": idle,
        "busy": False,
        "state": "T",
        "left": False,
        "stack": "",
    }
