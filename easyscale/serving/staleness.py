"""Staleness of gradients when they are applied."""

import collections
from collections.abc import Iterable, Mapping

__all__ = ["Staleness"]


class Staleness:
    """Counts of gradients, by staleness.

    A gradient's staleness is the largest number of steps that any other worker made between its worker's last pull and
    its application. With `P` workers of equal speed it is 1, which is `P - 1` updates.

    Attributes:
        pushed: Int. Gradients that have arrived.
        applied: Int. Gradients that were applied.
        dropped: Int. Gradients that were dropped because they were too late.
        counts: Counter. For each staleness, the number of gradients that were applied with it.
    """

    def __init__(self) -> None:
        self.pushed = self.applied = self.dropped = 0
        self.counts: collections.Counter[int] = collections.Counter()

    def apply(self, staleness: int) -> None:
        """Count a gradient that is applied."""
        self.applied += 1
        self.counts[staleness] += 1

    @property
    def mean(self) -> float:
        return sum(steps * count for steps, count in self.counts.items()) / max(1, self.applied)

    @property
    def largest(self) -> int:
        return max(self.counts, default=0)

    def to_json(self) -> dict:
        """Return the counts as a dictionary for `from_json`."""
        return {
            "pushed": self.pushed,
            "applied": self.applied,
            "dropped": self.dropped,
            "counts": {str(steps): count for steps, count in sorted(self.counts.items())},
        }

    @classmethod
    def from_json(cls, written: Mapping) -> "Staleness":
        """Return the counts that `to_json` has described."""
        made = cls()
        made.pushed, made.applied, made.dropped = written["pushed"], written["applied"], written["dropped"]
        made.counts.update({int(steps): count for steps, count in written["counts"].items()})
        return made

    @classmethod
    def together(cls, ones: Iterable["Staleness"]) -> "Staleness":
        """Return the sum of the counts of several servers, or of several epochs."""
        whole = cls()
        for part in ones:
            whole.pushed += part.pushed
            whole.applied += part.applied
            whole.dropped += part.dropped
            whole.counts.update(part.counts)
        return whole

    def describe(self, servers: int = 1) -> str:
        """Return a line about the gradients, each of which `servers` servers have counted.

        Example:

        >>> staleness = Staleness()
        >>> for steps in (0, 1, 1):
        ...     staleness.pushed += 1
        ...     staleness.apply(steps)
        >>> staleness.describe()
        '3 gradients pushed = 3 applied + 0 dropped; staleness in steps 0.667 on average, 1 at most (0: 1, 1: 2)'
        """
        pushed, applied, dropped = (total / servers for total in (self.pushed, self.applied, self.dropped))
        counts = ", ".join(f"{steps}: {count / servers:g}" for steps, count in sorted(self.counts.items()))
        return (
            f"{pushed:g} gradients pushed = {applied:g} applied + {dropped:g} dropped; "
            f"staleness in steps {self.mean:.3g} on average, {self.largest} at most ({counts})"
        )
