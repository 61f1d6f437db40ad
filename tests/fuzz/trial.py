"""One case: trained without EasyScale and with it, and what came of it."""

import dataclasses
import re

from fuzz.case import Case
from fuzz.compare import Difference, compare, compare_ranks, compare_resumed, rounded_to
from fuzz.dimensions.distribution import waits
from fuzz.pool import Broken, Pool
from fuzz.script import environment, launch_options, render
from fuzz.worker import Reply, Task

__all__ = ["Trial", "Verdict"]

_REFUSALS = ("ValueError", "TypeError", "NotImplementedError")
_MAGNIFIED = 1000.0  # times as large as by rounding alone, a difference is a mistake
_MAGNIFIED_HALF = 3.0  # the same of half types, whose rounding is near what is promised


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What came of a case.

    Attributes:
        kind: String. `"equal"`; `"refused"`, by EasyScale, on all ranks, in one line; `"skipped"`, because Keras
            refuses it; `"ill-conditioned"`, because rounding alone changes the result; or a failure: `"differs"`,
            `"ranks differ"`, `"goes on differently"`, `"error"`, `"hang"`, `"death"`.
        detail: String. What differs, or the message.
        more: String. A traceback, or what the job has written.
        before: Tuple of the sources that the same processes had trained.
    """

    kind: str
    detail: str = ""
    more: str = ""
    before: tuple = ()

    @property
    def fails(self) -> bool:
        """Whether EasyScale breaks a promise."""
        return self.kind not in ("equal", "refused", "skipped", "ill-conditioned", "found again")

    @property
    def cause(self) -> str:
        """What shrinking must keep: the kind, and of an error its class and the words of its message."""
        words = re.sub(r"[^A-Za-z_ ]+", " ", self.detail) if self.kind == "error" else ""
        return f"{self.kind}: {' '.join(words.split()[:8])}"


class Trial:
    """Runs cases in a pool.

    Args:
        pool: `Pool`.
        setup: String. Source that is run before each script, with EasyScale. Defaults to `""`.
    """

    def __init__(self, pool: Pool, setup: str = ""):
        self._pool, self._setup = pool, setup

    def run(self, case: Case, alone: bool = False) -> Verdict:
        """Train a case, by fresh processes if `alone`."""
        source = render(case)
        try:
            expected = self._pool.train(None, Task(source), alone)[0][0]
        except Broken as error:
            return Verdict("skipped", f"one process does not come to an end: {error.kind}", error.output)
        try:
            found, before = self._pool.train(launch_options(case), Task(source, self._setup), alone, environment(case))
        except Broken as error:
            verdict = _broken(case, error, expected)
            return dataclasses.replace(verdict, before=tuple(task.source for task in error.before))
        verdict = self._judge(case, expected, found)
        return dataclasses.replace(verdict, before=tuple(task.source for task in before))

    def _judge(self, case: Case, expected: Reply, found: dict[int, Reply]) -> Verdict:
        errors = {rank: reply for rank, reply in found.items() if reply.error}
        if errors:
            first = errors[min(errors)]
            detail = f"{first.error}: {first.message}"
            if len(errors) < len(found):
                return Verdict("error", f"on rank {min(errors)} only: {detail}", first.trace)
            if expected.error:
                return Verdict("skipped", f"{expected.error}: {expected.message}")
            if len({_without_numbers(reply.message) for reply in errors.values()}) > 1:
                return Verdict("error", f"ranks say different things: {detail}", first.trace)
            return Verdict("refused" if _refuses(first) else "error", detail, first.trace)
        if expected.error:
            return Verdict("skipped", f"one process alone: {expected.error}: {expected.message}", expected.trace)
        workers = {rank: found[rank].seen for rank in sorted(found) if rank < int(case["workers"])}
        if difference := compare_ranks(case, workers):
            return Verdict("ranks differ", difference)
        if difference := compare_resumed(case, found[0].seen):
            return Verdict("goes on differently", difference)
        difference = compare(case, expected.seen, found[0].seen)
        if difference is None:
            return Verdict("equal")
        magnified = _MAGNIFIED_HALF if rounded_to(case).startswith("mixed") else _MAGNIFIED
        for sign in (1, -1):  # an optimizer that looks at signs may take the one for the exact step
            rounding = self._rounding(case, expected, sign)
            if rounding is not None and rounding.gap * magnified >= difference.gap:
                return Verdict("ill-conditioned", f"{difference.text}; by rounding alone: {rounding.text}")
        return Verdict("differs", difference.text)

    def _rounding(self, case: Case, expected: Reply, sign: int) -> Difference | None:
        """Return by how much one process differs from itself if weights and losses are a rounding error away.

        Nor does XLA compile its steps then, which several processes do without.
        """
        try:
            other = self._pool.train(None, Task(render(case.but(jit_compile="no"), perturbed=sign)))[0][0]
        except Broken:
            return None
        return None if other.error else compare(case, expected.seen, other.seen, tolerance=0.0)


def _refuses(reply: Reply) -> bool:
    is_whole = re.fullmatch(".* Received: .*", reply.message) is not None
    return reply.is_ours and reply.error in _REFUSALS and is_whole


def _broken(case: Case, error: Broken, expected: Reply) -> Verdict:
    failed = {rank: reply for rank, reply in error.replies.items() if reply.error}
    if failed:
        reply = failed[min(failed)]
        others = "the others wait" if error.kind != "death" else "another died"
        if expected.error:
            return Verdict("skipped", f"{expected.error}: {expected.message}")
        if not waits(case) and all(map(_refuses, failed.values())):  # which ends the job, where nobody catches it
            return Verdict("refused", f"{reply.error}: {reply.message}", reply.trace)
        return Verdict("error", f"on rank {min(failed)} only, {others}: {reply.error}: {reply.message}", reply.trace)
    # In a server's thread, which ends the job; there the step is a graph, and the message may be another.
    if expected.error and (error.kind == "death" or expected.message.splitlines()[0] in error.output):
        return Verdict("skipped", f"{expected.error}: {expected.message}")
    return Verdict(error.kind, f"{len(error.replies)} ranks came to the end", error.output)


def _without_numbers(text: str) -> str:
    return re.sub(r"\d+", "N", text)
