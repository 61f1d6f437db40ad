"""Progress record of a rank, in memory that it shares with its watcher.

The rank writes a few numbers, at negligible cost. The watcher can read them at any time, even while the rank is stuck
or stopped by a signal. Without a watcher, the record is in the rank's private memory.
"""

import faulthandler
import json
import mmap
import os
import signal
import time

__all__ = ["Activity", "Leave", "Progress", "STACK_SIGNAL", "Wait"]

STACK_SIGNAL = signal.SIGRTMIN + 6  # makes a rank write the stacks of its threads

_WORDS = ("pid", "moves", "phase", "step", "exchanges", "activity", "leave", "met", "missed")
_SLOTS = 4  # waiting threads that can be recorded at a time; others are ignored
_TEXT = 512  # bytes for the description of each wait
_NUMBERS = 8 * (len(_WORDS) + 2 * _SLOTS)
_SIZE = _NUMBERS + _SLOTS * _TEXT


class Activity:
    """A rank's activity between exchanges. Some may take long, and are not stalls while the rank computes."""

    STEPS = 0
    FIRST_STEP = 1  # traced and compiled
    EVALUATION = 2
    NAMES = ("steps", "the first step, which is traced", "an evaluation")


class Leave:
    """The way in which a rank leaves the job."""

    NONE = 0  # not yet
    DONE = 1
    TOO_EARLY = 2  # others still need it
    GAVE_UP = 3  # because another rank failed or left
    RAISED = 4  # by an exception; the others of an elastic job go on
    UNNEEDED = 5  # it was a replacement that is no longer needed
    MISSED = 6  # it has finished, but another rank of the elastic job has neither finished nor been removed


class Wait:
    """A thread's wait: `since`, in nanoseconds on the monotonic clock, and a dictionary that describes it."""

    def __init__(self, since: int, about: dict):
        self.since, self.about = since, about

    @property
    def seconds(self) -> float:
        return (time.monotonic_ns() - self.since) / 1e9


def _word(index: int) -> property:
    def get(self: "Progress") -> int:
        return self._numbers[index]

    def set(self: "Progress", value: int) -> None:
        self._numbers[index] = value

    return property(get, set)


class Progress:
    """The record of one rank. Its numbers are readable and writable attributes.

    Args:
        memory: A `mmap` of `Progress.open`, or `None` for private memory.

    Attributes:
        pid: Int. The process that writes, if it handles `STACK_SIGNAL`; else 0.
        moves: Int. Changes whenever the rank starts to wait for others, or completes an exchange.
        phase: Int. Twice the number of the epoch, from 1, plus 1 in an evaluation. 0 outside of `fit()`.
        step: Int. Steps so far in this `fit()`.
        exchanges: Int. Gradient exchanges so far.
        activity: Int, of `Activity`.
        leave: Int, of `Leave`.
        met: Int. 1 after all ranks have initialized MPI. Before, none can go on without the others.
        missed: Int. 1 plus the rank that ended while this one waited for it; 0 for none.
        exchange: String. The name of the exchange in use; not in the shared record.
        purpose: String. The purpose of the current collective call; not in the shared record.
    """

    pid, moves, phase, step, exchanges, activity, leave, met, missed = map(_word, range(len(_WORDS)))

    def __init__(self, memory: mmap.mmap | None = None):
        self._memory = memory if memory is not None else mmap.mmap(-1, _SIZE)
        self._numbers = memoryview(self._memory)[:_NUMBERS].cast("q")
        self._texts = memoryview(self._memory)[_NUMBERS:]
        self.exchange = self.purpose = ""

    @classmethod
    def open(cls, file: int | None = None) -> tuple["Progress", int]:
        """Return a record that several processes can share, and its file descriptor.

        Args:
            file: Int. The descriptor of an existing record. Defaults to `None`: a new one, in anonymous memory.
        """
        if file is None:
            file = os.memfd_create("easyscale-progress")
            os.ftruncate(file, _SIZE)
        return cls(mmap.mmap(file, _SIZE)), file

    @classmethod
    def of_this_process(cls, variable: str) -> "Progress":
        """Return the record that a watcher has passed to this process in an environment variable, else a new one.

        With a watcher, the process handles `STACK_SIGNAL` from then on.

        Args:
            variable: String. The variable's value: process, descriptor of the record, descriptor for stacks.
        """
        pid, record, stacks = (int(number) for number in variable.split(":")) if variable else (0, 0, 0)
        if pid != os.getpid():  # inherited by a child of a rank
            return cls()
        made, _ = cls.open(record)
        faulthandler.register(STACK_SIGNAL, stacks, all_threads=True)
        made.pid = pid
        return made

    def moved(self) -> None:
        """Record that the rank has started to wait for others, or has completed an exchange."""
        self._numbers[1] += 1

    # Waits. A wait is recorded only after it has lasted a while, so that short ones cost nothing.

    def begin_wait(self, since: float, action: str, missing: list[int] | None = None, ends_job: bool = True) -> int:
        """Record that this thread waits; return the number for `end_wait`.

        Args:
            since: Float. The start, in seconds on the monotonic clock.
            action: String, such as "waits for rank 1".
            missing: The ranks that it waits for, if they are known. Defaults to `None`.
            ends_job: Bool. Whether too long a wait ends the job, rather than being only reported. Defaults to `True`.
        """
        slot = next((free for free in range(_SLOTS) if not self._since(free)), -1)
        if slot >= 0:
            about: dict[str, str | list[int] | bool] = {
                "what": action,
                "purpose": self.purpose,
                "exchange": self.exchange,
            }
            if not ends_job:
                about["ends_job"] = False
            if missing is not None:
                about["missing"] = missing[:20]
            text = json.dumps(about).encode()
            text = text if len(text) < _TEXT else json.dumps({"what": action[:100]}).encode()
            self._texts[slot * _TEXT : slot * _TEXT + len(text) + 1] = text + b"\0"
            self._set_since(slot, int(since * 1e9))
        return slot

    def end_wait(self, slot: int) -> None:
        """Record that the wait is over."""
        if slot >= 0:
            self._set_since(slot, 0)

    @property
    def waits(self) -> list[Wait]:
        """The current waits of this rank's threads, longest first."""
        found = []
        for slot in range(_SLOTS):
            if since := self._since(slot):
                text = bytes(self._texts[slot * _TEXT : (slot + 1) * _TEXT]).partition(b"\0")[0]
                try:
                    found.append(Wait(since, json.loads(text)))
                except ValueError:  # being written right now
                    continue
        return sorted(found, key=lambda wait: wait.since)

    def _since(self, slot: int) -> int:
        return self._numbers[len(_WORDS) + slot]

    def _set_since(self, slot: int, value: int) -> None:
        self._numbers[len(_WORDS) + slot] = value
