"""The schedule of checkpoints: an interval in steps, or in time."""

import time

import numpy as np

__all__ = ["CheckpointSchedule"]

_LOOK_AFTER = 10  # steps after which the chief first knows the time per step


class CheckpointSchedule:
    """Determines the steps at which ranks meet for a checkpoint.

    Clocks differ between ranks, and so do step times. So with an interval in time, ranks meet at a step that all of
    them know: there the chief's clock decides whether a checkpoint is due, or after how many steps it will be.

    Args:
        steps: Int. The interval in steps; 0 if it is in time.
        seconds: Float. The interval in seconds.

    Example:

    >>> schedule = CheckpointSchedule(steps=50, seconds=0.0)
    >>> schedule.begin(100)
    >>> schedule.is_due(149), schedule.is_due(150)
    (False, True)
    """

    def __init__(self, steps: int, seconds: float):
        self._every, self._seconds = steps, seconds
        self._last, self._last_step = time.monotonic(), 0
        self._due = 0

    def __str__(self) -> str:
        return f"{self._every} steps" if self._every else f"{self._seconds:g} s"

    def begin(self, steps: int) -> None:
        """Start, or resume, after `steps` steps."""
        self._due = steps + (self._every or _LOOK_AFTER)

    def is_due(self, steps: int) -> bool:
        """Return whether ranks meet after `steps` steps."""
        return steps >= self._due

    def meet_at(self, steps: int) -> None:
        """Make ranks meet after `steps` steps."""
        self._due = steps

    def so_far(self, steps: int) -> np.ndarray:
        """Return the seconds and the steps since the last checkpoint."""
        return np.array([time.monotonic() - self._last, steps - self._last_step])

    def is_time(self, elapsed: float) -> bool:
        """Return whether ranks that have met write a checkpoint, `elapsed` seconds after the last one."""
        return self._every > 0 or elapsed >= self._seconds

    def plan(self, steps: int, elapsed: float, made: float, has_written: bool) -> None:
        """Schedule the next meeting for when a checkpoint will be due.

        Args:
            steps: Int. The steps so far.
            elapsed: Float. The chief's seconds since the last checkpoint.
            made: Float. The chief's steps in that time.
            has_written: Bool. Whether one is written now.
        """
        rest = self._seconds if has_written else self._seconds - elapsed
        self._due = steps + (self._every or max(1, int(made / elapsed * rest)))

    def count_from(self, steps: int) -> None:
        """Record that there is a checkpoint of this step."""
        self._last, self._last_step = time.monotonic(), steps
