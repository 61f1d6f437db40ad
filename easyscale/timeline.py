"""Timeline of a rank: the time that each part of a step takes.

The training thread, and the threads from which the backend calls Python on its behalf, do one thing at a time. So a
step is a sequence of parts, each of which ends where the next begins, and their times add up to that of the step. Other
threads have separate rows, which are in no sum.
"""

import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple, SupportsFloat, TypeVar

__all__ = ["Part", "Span", "Timeline"]

T = TypeVar("T")


class Part:
    """The parts of a step, in the order in which they are shown."""

    DATA = "data"  # waiting for the batch
    PASSES = "forward-backward"
    WAIT = "wait"  # for ranks that are behind
    PACK = "pack"  # copying gradients into and out of buckets
    EXCHANGE = "exchange"
    UPDATE = "update"
    GATHER = "gather"  # of weights that other ranks have updated
    CALLBACKS = "callbacks"
    CHECKPOINT = "checkpoint"
    OTHER = "other"
    ALL = (DATA, PASSES, WAIT, PACK, EXCHANGE, UPDATE, GATHER, CALLBACKS, CHECKPOINT, OTHER)


class Span(NamedTuple):
    """A recorded part of a step.

    Attributes:
        name: String. Of `Part`.
        begin, end: Int. Nanoseconds on `Timeline.clock`.
        thread: String. `""` for the training thread's row.
        step: Int. The number of the step, from 0 in this process.
    """

    name: str
    begin: int
    end: int
    thread: str
    step: int


class Timeline:
    """Records when each part of a step begins. While it is off, each call returns at once.

    Args:
        is_on: Bool. Defaults to `False`.
        traced: Range of the numbers of steps whose `spans` are kept. Defaults to `None`: none.

    Attributes:
        is_on: The same.
        spans: List of `Span`, of the traced steps.
        times: `Counter`. Nanoseconds of each part in all counted steps since the last `begin`.
        waits: Dict. By the number of each of these steps, its nanoseconds of `Part.WAIT`.
        is_told: Bool. Whether the user has been told why nothing is recorded.
        number: Int. The number of the current step, or of the last one; -1 before the first.

    Example:

    >>> timeline = Timeline(is_on=True, traced=range(1))
    >>> timeline.begin_step()
    >>> timeline.to(Part.PASSES)
    'other'
    >>> timeline.end_step()
    >>> [span.name for span in timeline.spans]
    ['other', 'forward-backward']
    >>> sum(timeline.times.values()) == timeline.spans[-1].end - timeline.spans[0].begin
    True
    """

    def __init__(self, is_on: bool = False, traced: range | None = None):
        self.is_told = False
        self.is_on, self._traced = is_on, range(0) if traced is None else traced
        self.spans: list[Span] = []
        self._marks: list[tuple[int, str]] = []  # the start of each part of the current step
        self.number, self._counts = -1, True
        self.begin()

    @staticmethod
    def clock() -> int:
        """Return nanoseconds since a moment that is the same for all processes of a host."""
        return time.monotonic_ns()

    def begin(self) -> None:
        """Reset the sums at the start of a `fit()`. A step interrupted by an error is dropped."""
        self._marks.clear()
        self.times: Counter[str] = Counter()
        self.waits: dict[int, int] = {}

    @property
    def steps(self) -> int:
        """The number of counted steps."""
        return len(self.waits)

    def begin_step(self) -> None:
        """End the previous step, if any, and begin the next."""
        if self.is_on:
            now = self.clock()
            self._close(now)
            self.number += 1
            self._counts = True
            self._marks.append((now, Part.OTHER))

    def leave_out(self) -> None:
        """Do not count the current step, because it is traced or compiled. Its spans are kept like those of others."""
        self._counts = False

    def end_step(self) -> None:
        """End the last step of an epoch. A step that still waits for data has found none, and is dropped."""
        if self._marks and self._marks[-1][1] == Part.DATA:
            self.drop_step()
        if self.is_on:
            self._close(self.clock())

    def drop_step(self) -> None:
        """Drop the current step, for which there was no data."""
        if self._marks:
            self._marks.clear()
            self.number -= 1

    def settle(self, number: int) -> None:
        """Set the step number to the one that all ranks have reached, after a rank has run out of data."""
        self.number = number

    def to(self, part: str) -> str:
        """Begin a part of the current step, which ends the previous one; return the previous one.

        Outside of a step nothing is recorded.
        """
        if not self._marks:
            return ""
        before = self._marks[-1][1]
        self._marks.append((self.clock(), part or before))
        return before

    def came(self, *seconds: SupportsFloat) -> None:
        """Record when the batch of the current step arrived, if known: at that time the passes began.

        Args:
            seconds: Float. Since 1970, as recorded by a graph. If left out, nothing is done.
        """
        if not self._marks or not seconds:
            return
        ago = time.time_ns() - round(1e9 * float(seconds[0]))
        at = max(self.clock() - ago, self._marks[0][0])
        count = sum(when <= at for when, _ in self._marks)
        later = [(when, Part.PASSES if part == Part.DATA else part) for when, part in self._marks[count:]]
        begins = self._marks[count - 1][1] in (Part.DATA, Part.UPDATE, Part.OTHER)
        self._marks[count:] = [*([(at, Part.PASSES)] if begins else []), *later]

    def beside(self, name: str, function: Callable[..., T], thread: str) -> Callable[..., T]:
        """Return a function for another thread; in a traced step, wrapped to record when it runs."""
        if not self.is_on or self.number not in self._traced:
            return function
        number = self.number

        def recorded(*args: Any) -> T:
            begin = self.clock()
            try:
                return function(*args)
            finally:
                self.spans.append(Span(name, begin, self.clock(), thread, number))

        return recorded

    def _close(self, now: int) -> None:
        """Record the parts of the step that ends now."""
        if not self._marks:
            return
        parts = [(name, begin, end) for (begin, name), (end, _) in pairwise([*self._marks, (now, "")])]
        self._marks.clear()
        if self.number in self._traced:
            self.spans += [Span(name, begin, end, "", self.number) for name, begin, end in parts]
        if self._counts:
            wait = 0
            for name, begin, end in parts:
                self.times[name] += end - begin
                wait += (end - begin) * (name == Part.WAIT)
            self.waits[self.number] = wait
