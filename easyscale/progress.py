"""What a rank tells of itself to whoever watches it: a record in memory that both see.

The rank writes a few numbers, which costs it nothing worth mentioning. The watcher reads them whenever it likes, also
while the rank is stuck, or stopped by a signal. Where nobody watches the record is memory of the rank's own.
"""

import faulthandler
import json
import mmap
import os
import signal
import time

__all__ = ["Activity", "Leave", "Progress", "STACK_SIGNAL", "Wait"]

STACK_SIGNAL = signal.SIGRTMIN + 6  # a rank that gets it writes where each of its threads is

_WORDS = ("pid", "moves", "phase", "step", "exchanges", "activity", "leave", "met", "missed")
_SLOTS = 4  # threads that wait at a time; more go unnoticed
_TEXT = 512  # bytes for what each of them waits for
_NUMBERS = 8 * (len(_WORDS) + 2 * _SLOTS)
_SIZE = _NUMBERS + _SLOTS * _TEXT


class Activity:
    """What a rank does between exchanges that may take its time, and is no stall as long as it computes."""

    STEPS = 0
    FIRST_STEP = 1  # which traces, and compiles
    EVALUATION = 2
    NAMES = ("steps", "the first step, which is traced", "an evaluation")


class Leave:
    """How a rank takes leave of the others."""

    NONE = 0  # not yet
    DONE = 1
    TOO_EARLY = 2  # others still need it
    GAVE_UP = 3  # because of what another one did
    RAISED = 4  # by an exception, after which others of an elastic job go on
    UNNEEDED = 5  # it was to replace another one, and is not needed any more
    MISSED = 6  # it has come to its end, and one of an elastic job has not, whom nobody has left out


class Wait:
    """One thread's wait: `since` (on the monotonic clock, in nanoseconds) and what a dictionary says of it."""

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
    """The record of one rank. Its numbers are attributes that can be read and set.

    Args:
        memory: A `mmap` of `Progress.open`, or `None` for memory of this process's own.

    Attributes:
        pid: Int. The process that writes, if it answers to `STACK_SIGNAL`; else 0.
        moves: Int. Changes whenever the rank begins to wait for others, or has come through an exchange.
        phase: Int. Twice the number of the epoch, from 1; one more in an evaluation. 0 outside of `fit()`.
        step: Int. Steps so far in this `fit()`.
        exchanges: Int. Exchanges of gradients so far.
        activity: Int, of `Activity`.
        leave: Int, of `Leave`.
        met: Int. 1 if all ranks have begun with MPI. Before, none can go on without another.
        missed: Int. One more than the number of the rank that has ended while this one waited for it; 0 for none.
        exchange: String. Of the rank's own: the name of the exchange in use.
        purpose: String. Of the rank's own: what it meets the others for.
    """

    pid, moves, phase, step, exchanges, activity, leave, met, missed = map(_word, range(len(_WORDS)))

    def __init__(self, memory: mmap.mmap | None = None):
        self._memory = memory if memory is not None else mmap.mmap(-1, _SIZE)
        self._numbers = memoryview(self._memory)[:_NUMBERS].cast("q")
        self._texts = memoryview(self._memory)[_NUMBERS:]
        self.exchange = self.purpose = ""

    @classmethod
    def open(cls, file: int | None = None) -> tuple["Progress", int]:
        """Return a record that several processes see, and its file descriptor.

        Args:
            file: Int. The descriptor of a record that is there. Defaults to `None`: a new one, in memory without a
                name.
        """
        if file is None:
            file = os.memfd_create("easyscale-progress")
            os.ftruncate(file, _SIZE)
        return cls(mmap.mmap(file, _SIZE)), file

    @classmethod
    def of_this_process(cls, variable: str) -> "Progress":
        """Return the record that a watcher has given to this process by an environment variable, else a new one.

        From then on the process answers to `STACK_SIGNAL`.

        Args:
            variable: String. The value: process, descriptor of the record, descriptor to write stacks to.
        """
        pid, record, stacks = (int(number) for number in variable.split(":")) if variable else (0, 0, 0)
        if pid != os.getpid():  # a child of a rank has inherited it
            return cls()
        made, _ = cls.open(record)
        faulthandler.register(STACK_SIGNAL, stacks, all_threads=True)
        made.pid = pid
        return made

    def moved(self) -> None:
        """Note that the rank has begun to wait for others, or come through an exchange."""
        self._numbers[1] += 1

    # Waiting. A wait is written down when it has lasted a while, so that short ones cost nothing.

    def begin_wait(self, since: float, action: str, missing: list[int] | None = None, ends_job: bool = True) -> int:
        """Write down that this thread waits; return the number for `end_wait`.

        Args:
            since: Float. On the monotonic clock, in seconds.
            action: String, as "waits for rank 1".
            missing: The ranks that it waits for, if that is known. Defaults to `None`.
            ends_job: Bool. Whether the job is ended if that takes too long, and not only told of. Defaults to `True`.
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
        """Write down that the wait is over."""
        if slot >= 0:
            self._set_since(slot, 0)

    @property
    def waits(self) -> list[Wait]:
        """What this rank's threads wait for now, the longest wait first."""
        found = []
        for slot in range(_SLOTS):
            if since := self._since(slot):
                text = bytes(self._texts[slot * _TEXT : (slot + 1) * _TEXT]).partition(b"\0")[0]
                try:
                    found.append(Wait(since, json.loads(text)))
                except ValueError:  # it is being written
                    continue
        return sorted(found, key=lambda wait: wait.since)

    def _since(self, slot: int) -> int:
        return self._numbers[len(_WORDS) + slot]

    def _set_since(self, slot: int, value: int) -> None:
        self._numbers[len(_WORDS) + slot] = value
