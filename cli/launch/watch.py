"""The watchdog on each host: observes a rank from outside, and notifies the launcher when it stalls.

It runs in another process, so it works for a rank that is stuck or stopped, and costs the rank nothing: it reads the
rank's record at least once a second, and asks for its stack only if it has not moved for the whole time-out.
"""

import contextlib
import os
import re
import select
import time
from collections.abc import Callable
from typing import Literal, cast

from easyscale.cli.launch import messages
from easyscale.progress import STACK_SIGNAL, Activity, Progress, Wait
from easyscale.settings import Settings

__all__ = ["Watch", "state_of"]

_BEGINNING_SECONDS = 0.2  # between two looks at a rank until all have started MPI
_STACK_SECONDS = 1.0  # for a rank to write its stack
_LINES = 30  # of a stack
_TICKS = os.sysconf("SC_CLK_TCK")
_MAY_TAKE_ITS_TIME = (Activity.FIRST_STEP, Activity.EVALUATION)
_INSIDE_MPI = re.compile(r'(?:.*\n)?  File ".*easyscale/communicator/mpi/(?!waiting)\w+\.py", line \d+ in (\w+)')


class Watch:
    """Watches one rank.

    Args:
        timeout: Float. Seconds after which a rank that has not moved is reported; 0: never.
        say: Callable. Takes a message for the launcher.
        sleeps: Bool. Whether there is nothing to watch until `wake` is called. Defaults to `False`.
    """

    def __init__(self, timeout: float, say: Callable[[messages.Message], None], sleeps: bool = False):
        self._timeout, self._say = timeout, say
        self._progress, self._record = Progress.open()
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK)
        self._mark: tuple = ()
        self._moved_at = self._looked_at = time.monotonic()
        self._told_at = 0.0  # when a stall was last reported; 0 if none is
        self._cpu = (0.0, time.monotonic())  # CPU seconds of the rank, and when they were read
        self._worked_at = self._moved_at  # when the rank was last seen computing
        self._sleeps = sleeps
        # Steps of MPI startup that have not been reported to the launcher.
        self._steps: list[Literal["begins", "meets"]] = ["begins", "meets"]
        self._searched_at: float | None = 0.0  # when TensorFlow was last looked for; `None` once it was found

    @property
    def interval(self) -> float | None:
        """Seconds between two looks; `None` if there is nothing to look for."""
        if self._sleeps:
            return None
        if self._steps:
            return _BEGINNING_SECONDS
        return min(1.0, self._timeout / 8) if self._timeout else None

    def wake(self) -> None:
        """Start watching."""
        self._sleeps = False
        self._mark, self._moved_at = (), time.monotonic()

    def give(self) -> None:
        """Hand the record to this process, which becomes the rank."""
        record = f"{os.getpid()}:{self._record}:{self._writer}"
        os.environ.update(Settings(progress=record).variables())
        os.set_inheritable(self._record, True)
        os.set_inheritable(self._writer, True)

    @property
    def farewell(self) -> messages.Farewell:
        """The end of the rank by its record: whether all had started MPI, if it was in `fit()`, and how it left."""
        progress = self._progress
        met, in_fit = bool(progress.met), bool(progress.phase)
        return {"met": met, "in_fit": in_fit, "leave": progress.leave, "missed": progress.missed}

    def look(self, pid: int) -> None:
        """Look at the rank; report if it has not moved for the time-out, moves again, or starts MPI.

        Also report if it has loaded TensorFlow without starting MPI: it may train a separate model.
        """
        now, interval = time.monotonic(), self.interval
        if interval is None or now - self._looked_at < interval:
            return
        self._looked_at = now
        if len(self._steps) == 2 and self._searched_at is not None and now - self._searched_at >= 1.0:
            self._searched_at = None if _has_tensorflow(pid) else now
            if self._searched_at is None:
                self._say({"kind": "loads"})
        while self._steps and (self._progress.met or (self._progress.pid and len(self._steps) == 2)):
            self._say({"kind": self._steps.pop(0)})
        if not self._timeout:
            return
        progress = self._progress
        waits = progress.waits
        state = state_of(pid)
        mark = progress.moves, progress.step, progress.exchanges, progress.phase, state == "T"
        if mark != self._mark:
            self._mark, self._moved_at = mark, now
            if self._told_at:
                self._told_at = 0.0
                self._say({"kind": "moves"})
        pace = max(1.0, self._timeout / 8)
        if now - self._cpu[1] >= pace / 2:
            spent, before = _cpu_seconds(pid), self._cpu
            self._cpu = spent, now
            if spent - before[0] > 0.02 * (now - before[1]) or _wants_to_run(pid):
                self._worked_at = now
        waited = waits[0].seconds if waits else 0.0
        if max(waited, now - self._moved_at) >= self._timeout and now - self._told_at >= pace:
            self._told_at = now
            self._say(self._describe(pid, state, waits, now))

    def _describe(self, pid: int, state: str, waits: list[Wait], now: float) -> messages.Stands:
        progress = self._progress
        can_answer = state != "T" and progress.pid == pid and not progress.leave and _catches(pid, STACK_SIGNAL)
        stack = self._ask(pid) if can_answer and not waits else ""
        told = [cast(messages.Wait, {"seconds": wait.seconds, **wait.about}) for wait in waits]
        if not progress.leave and (inside_mpi := _INSIDE_MPI.match(stack)):
            told = [{"seconds": now - self._moved_at, "what": f"is in MPI's own {inside_mpi[1]}"}]
        may_take_long = progress.activity in _MAY_TAKE_ITS_TIME or not progress.phase
        works = now - self._worked_at < self._timeout  # on a busy machine it may get no core for a while
        return {
            "kind": "stands",
            "host": os.uname().nodename,
            "pid": pid,
            "connected": bool(progress.pid),
            "waits": told,
            "phase": progress.phase,
            "step": progress.step,
            "exchanges": progress.exchanges,
            "activity": progress.activity,
            "idle": now - self._moved_at,
            "busy": not told and works and may_take_long and state != "T",
            "state": state,
            "left": bool(progress.leave),
            "stack": "" if told else stack,
        }

    def _ask(self, pid: int) -> str:
        """Return the Python stacks of the rank's threads."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self._reader, 1 << 16):
                pass
        text, end = b"", time.monotonic() + _STACK_SECONDS
        try:
            os.kill(pid, STACK_SIGNAL)
        except ProcessLookupError:
            return ""
        while select.select([self._reader], [], [], 0.2 if text else max(0.0, end - time.monotonic()))[0]:
            text += os.read(self._reader, 1 << 16)
        return _interesting(text.decode(errors="replace"))


def _interesting(text: str) -> str:
    """Drop threads that wait for work: those whose innermost call is in a threading module of the standard library."""
    threads = [stack.strip("\n") for stack in re.split(r"\n(?=(?:Current thread|Thread) )", text.strip("\n"))]
    idle = re.compile(r'.*\n  File ".*(?:threading|queue|concurrent/futures/thread|multiprocessing/pool)\.py"')
    kept = [stack for stack in threads[:-1] if not idle.match(stack)] + threads[-1:]  # the main thread is the last
    calls = [stack.partition("\n")[2] if len(kept) == 1 else stack for stack in reversed(kept)]
    return "\n".join("\n".join(calls).splitlines()[:_LINES])


def _has_tensorflow(pid: int) -> bool:
    """Return whether a process has loaded TensorFlow."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", errors="replace") as maps:
        return "/libtensorflow" in maps.read()
    return False


def state_of(pid: int, thread: int | None = None) -> str:
    """Return the state of a process, or of one of its threads, as in `ps`, e.g. R, S or T; `?` if it is gone."""
    path = f"/proc/{pid}/stat" if thread is None else f"/proc/{pid}/task/{thread}/stat"
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0].upper()
    except OSError:
        return "?"


def _wants_to_run(pid: int) -> bool:
    """Return whether a thread of a process runs, or waits for a core or a disk."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return False
    return any(state_of(pid, int(thread)) in ("R", "D") for thread in threads)


def _catches(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal. An ending one has none, and the signal would kill it."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            caught = next(line.split()[1] for line in file if line.startswith("SigCgt:"))
    except (OSError, StopIteration):
        return False
    return bool(int(caught, 16) >> (number - 1) & 1)


def _cpu_seconds(pid: int) -> float:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS
