"""The launcher's side of the watchdog: one report for the whole job of ranks that wait, and where the others are."""

import time

from easyscale.cli.launch.messages import Moves, Stands
from easyscale.progress import Activity

__all__ = ["Stalls"]

_GRACE = 3.0  # seconds that other ranks' reports may arrive after the first
_FRESH = 8.0  # minimum seconds that a rank's last report stays valid


class Stalls:
    """Collects reports about ranks that have stalled.

    Args:
        timeout: Float. Seconds that a rank may wait for others; 0: forever.
        size: Int. The number of ranks.

    Attributes:
        timeout: Float. As given.
        culprit: Int. The rank that the others wait for; `None` if it is not known.
    """

    def __init__(self, timeout: float, size: int):
        self.timeout, self._size = timeout, size
        self._told: dict[int, tuple[Stands, float]] = {}  # rank -> its last report, and when it arrived
        self._ended: dict[int, str] = {}  # rank -> how, in words
        self._lost: set[int] = set()  # ranks without which the others go on
        self._ended_at = -_GRACE  # when the last rank in `_ended` did
        self._since = 0.0  # when a rank that waits too long was first reported
        self._reported = False
        self.culprit: int | None = None

    def hear(self, rank: int, words: Moves | Stands) -> None:
        """Record a report about a rank."""
        if words["kind"] == "moves":
            self._told.pop(rank, None)
        else:
            self._told[rank] = words, time.monotonic()

    def end(self, rank: int, how: str) -> None:
        """Record that a rank has ended."""
        self._told.pop(rank, None)
        self._ended[rank], self._ended_at = how, time.monotonic()

    def lose(self, rank: int) -> None:
        """Record that a rank has ended, and that the others go on without it."""
        self._told.pop(rank, None)
        self._lost.add(rank)

    def take_in(self, rank: int) -> None:
        """Record that a replacement for a lost rank has joined the others."""
        self._lost.discard(rank)

    def report(self) -> list[str]:
        """Return the lines to print now: usually none."""
        stuck = self._stuck() if self.timeout else {}
        if not stuck:
            lines = ["easyscale: the ranks go on"] if self._reported else []
            self._since, self._reported = 0.0, False
            return lines
        now = time.monotonic()
        self._since = self._since or now
        silent = [rank for rank in self._waited_for(stuck) if rank not in self._told and rank not in self._ended]
        # A rank that has moved since the others began to wait is not reported yet, and may be legitimately busy.
        if self._reported or self._is_old(stuck) or (silent and now - self._since < max(_GRACE, self.timeout)):
            return []
        self._reported = True
        return self._describe()

    @property
    def is_over(self) -> bool:
        """True if ranks have waited for twice the time-out, or wait for ranks that have ended."""
        stuck = self._stuck()
        return (self._reported and not self._is_old(stuck)) and (
            any(_stand(stands) >= 2 * self.timeout and _ends_job(stands) for stands in stuck.values())
            or self._is_in_vain(stuck)
        )

    def _is_old(self, stuck: dict[int, Stands]) -> bool:
        """Return whether these waits may be outdated: the awaited rank may have arrived and ended since the reports."""
        told_before = any(self._told[rank][1] <= self._ended_at for rank in stuck)
        return told_before and time.monotonic() - self._ended_at < _GRACE

    def _is_in_vain(self, stuck: dict[int, Stands]) -> bool:
        """Return whether all ranks that do not wait have ended, so that the others wait in vain."""
        missing = [rank for rank in self._ranks if rank not in stuck]
        return bool(missing) and all(rank in self._ended for rank in missing)

    @property
    def _ranks(self) -> list[int]:
        return [rank for rank in range(self._size) if rank not in self._lost]

    def _waited_for(self, stuck: dict[int, Stands]) -> set[int]:
        """Return the ranks that these wait for, or all ranks if that is unknown."""
        waits = [wait for stands in stuck.values() for wait in stands["waits"]]
        if all("missing" in wait for wait in waits) and all(stands["waits"] for stands in stuck.values()):
            return {rank for wait in waits for rank in wait["missing"]} & {*self._ranks}
        return {*self._ranks}

    def _stuck(self) -> dict[int, Stands]:
        """Return the ranks that wait too long or are stopped; none while any rank is legitimately busy."""
        fresh = time.monotonic() - max(_FRESH, self.timeout / 2)
        words = {rank: stands for rank, (stands, when) in self._told.items() if when > fresh}
        if any(stands["busy"] for stands in words.values()):
            return {}
        return {rank: stands for rank, stands in words.items() if stands["waits"] or stands["state"] == "T"}

    def _describe(self) -> list[str]:
        told = {rank: stands for rank, (stands, _) in sorted(self._told.items())}
        waiting = {rank: stands for rank, stands in told.items() if stands["waits"] and stands["state"] != "T"}
        others = [rank for rank in self._ranks if rank not in waiting]
        stopped = [rank for rank in others if rank in told and told[rank]["state"] == "T"]
        self.culprit = next(iter(stopped + others), None)
        lines = [f"easyscale: the job stands still: {len(waiting)} of {len(self._ranks)} ranks wait for others"]
        for rank, stands in waiting.items():
            lines.append(f"  rank {rank} on {stands['host']} {stands['waits'][0]['what']}, {_whereabouts(stands)}")
        for rank in others:
            lines += self._describe_missing(rank, told.get(rank))
        if not others:
            lines.append(
                "  all wait, each for another: every rank must take part in the same exchanges, in one order; or for a "
                "process of --respawn that has not replaced any"
            )
        return [*lines, self._say_how_it_goes_on()]

    def _say_how_it_goes_on(self) -> str:
        stuck = self._stuck()
        if self._is_in_vain(stuck):
            return "easyscale: the job is ended now"
        if any(map(_ends_job, stuck.values())):
            seconds = f"{2 * self.timeout:g} s (--stall-timeout)"
            return f"easyscale: the job is ended when they have waited for {seconds}"
        return (
            "easyscale: the job goes on: who has come to the end of the script waits for the others as long as it takes"
        )

    def _describe_missing(self, rank: int, stands: Stands | None) -> list[str]:
        if rank in self._ended:
            return [f"  rank {rank} {self._ended[rank]}"]
        if stands is None:
            return [f"  rank {rank} does not wait, and nothing is known of it: it moves, or its host does not answer"]
        who = f"  rank {rank} on {stands['host']} does not wait, {_whereabouts(stands)}"
        if stands["state"] == "T":
            return [
                f"{who}: its process {stands['pid']} is stopped (state T) and cannot say where. `kill -CONT` wakes it"
            ]
        if not stands["connected"]:
            return [f"{who}: its process {stands['pid']} (state {stands['state']}) has not come to its first exchange"]
        if stands["left"]:
            return [f"{who}: it has come to the end of its script"]
        if not stands["stack"]:
            return [f"{who}: its process {stands['pid']} (state {stands['state']}) does not say where"]
        stack = [f"    {line}" for line in stands["stack"].splitlines()]
        return [
            f"{who}: its process {stands['pid']} (state {stands['state']}) is here, the innermost call first:",
            *stack,
        ]


def _stand(stands: Stands) -> float:
    return stands["waits"][0]["seconds"] if stands["waits"] else stands["idle"]


def _ends_job(stands: Stands) -> bool:
    """Return whether the job is ended if this rank waits too long."""
    return all(wait.get("ends_job", True) for wait in stands["waits"])


def _whereabouts(stands: Stands) -> str:
    """Describe where in the training a rank is, and for how long."""
    epoch, evaluates = divmod(stands["phase"], 2)
    where = [f"epoch {epoch}, step {stands['step'] + 1}"] if epoch else []
    if evaluates:
        where.append("in the evaluation")
    elif stands["activity"] != Activity.STEPS:
        where.append(f"in {Activity.NAMES[stands['activity']]}")
    wait = stands["waits"][0] if stands["waits"] else None
    if wait and wait.get("exchange"):
        where.append(f"exchange '{wait['exchange']}' number {stands['exchanges'] + 1}")
    if wait and wait.get("purpose"):
        where.append(f"to agree on: {wait['purpose']}")
    return ", ".join([*where, f"for {_stand(stands):.0f} s"])
