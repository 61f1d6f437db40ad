"""When checkpoints are written: after so many steps, or so much time."""

import time

import numpy as np

__all__ = ["CheckpointSchedule"]

_LOOK_AFTER = 10  # steps after which the chief first knows how long a step takes


class CheckpointSchedule:
    """Says at which step ranks meet for the next checkpoint.

    Clocks of ranks differ, and a step takes each its own time. So where time counts, ranks meet at a step that is known
    to all: there the chief's clock says whether it is time, or after how many steps it will be.

    Args:
        steps: Int. After so many steps a checkpoint is written; 0 if time counts.
        seconds: Float. After so many seconds.

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
        """Begin, or go on, after so many steps."""
        self._due = steps + (self._every or _LOOK_AFTER)

    def is_due(self, steps: int) -> bool:
        """Whether ranks meet after so many steps."""
        return steps >= self._due

    def meet_at(self, steps: int) -> None:
        """Let ranks meet after so many steps."""
        self._due = steps

    def so_far(self, steps: int) -> np.ndarray:
        """Return the seconds and the steps since the last checkpoint."""
        return np.array([time.monotonic() - self._last, steps - self._last_step])

    def is_time(self, elapsed: float) -> bool:
        """Whether ranks that have met write a checkpoint, so many seconds after the last one."""
        return self._every > 0 or elapsed >= self._seconds

    def plan(self, steps: int, elapsed: float, made: float, has_written: bool) -> None:
        """Let ranks meet again when it will be time.

        Args:
            steps: Int. The steps so far.
            elapsed: Float. The chief's seconds since the last checkpoint.
            made: Float. Its steps in them.
            has_written: Bool. Whether one is written now.
        """
        rest = self._seconds if has_written else self._seconds - elapsed
        self._due = steps + (self._every or max(1, int(made / elapsed * rest)))

    def count_from(self, steps: int) -> None:
        """Take in that there is a checkpoint of this step."""
        self._last, self._last_step = time.monotonic(), steps
