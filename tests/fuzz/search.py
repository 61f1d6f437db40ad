"""The search for cases that fail: looks closer at each, shrinks it, and prints the script."""

import collections
import threading
from collections.abc import Collection, Sequence
from pathlib import Path

from rich.console import Console

from fuzz.case import Case
from fuzz.script import render
from fuzz.shrink import shrink
from fuzz.trial import Trial, Verdict

__all__ = ["Search"]

_RECENT = 5  # scripts that are written down where a case fails only behind others


class Search:
    """Runs cases, and looks into each that fails.

    Args:
        trial: `Trial`.
        console: `rich.console.Console`.
        folder: Path. Where scripts go.
        known: List of cases. What fails and has all their values is not looked into. Defaults to `()`.
        fixed: Names of dimensions whose values no smaller case changes. Defaults to none.
    """

    def __init__(
        self,
        trial: Trial,
        console: Console,
        folder: Path,
        known: Sequence[Case] = (),
        fixed: Collection[str] = (),
    ):
        self._trial, self._console, self._folder = trial, console, folder
        self.counts: collections.Counter = collections.Counter()
        self.refusals: collections.Counter = collections.Counter()
        self.values: collections.Counter = collections.Counter()
        self.found: list[tuple[Case, Verdict]] = []
        self._known, self._fixed = known, fixed
        self._lock, self._looks_closer = threading.Lock(), threading.Lock()

    @property
    def failed(self) -> bool:
        """Whether any case has failed."""
        return any(Verdict(kind).fails for kind in self.counts)

    def look(self, case: Case) -> Verdict:
        """Run a case; if it fails, again by fresh processes, then shrink it, and print the script."""
        verdict = self._trial.run(case)
        if verdict.fails:
            verdict = self._look_closer(case, verdict)
        with self._lock:
            self.counts[verdict.kind] += 1
            self.values.update(case.chosen.items())
            if verdict.kind == "refused":
                self.refusals[verdict.detail] += 1
        return verdict

    def _look_closer(self, case: Case, verdict: Verdict) -> Verdict:
        with self._looks_closer:  # so that what is found again is not shrunk again
            alike = [small for small, found in self.found if found.kind == verdict.kind]
            if any(small.chosen.items() <= case.chosen.items() for small in (*alike, *self._known)):
                return Verdict("found again", verdict.detail)
            alone = self._trial.run(case, alone=True)
            if not alone.fails:
                self._report_dependent(case, verdict, alone)
                return verdict
            small = shrink(case, lambda smaller: self._trial.run(smaller).cause == alone.cause, keep=self._fixed)
            last = self._trial.run(small, alone=True)
            if last.cause != alone.cause:
                small, last = case, alone
            self.found.append((small, last))
            self._report(case, small, last)
            return last

    def _report(self, case: Case, small: Case, verdict: Verdict) -> None:
        path = self._folder / f"case-{case.seed}.py"
        path.write_text(render(small), encoding="utf-8")
        self._console.rule(f"seed {case.seed}: {verdict.kind}")
        self._console.print(f"{verdict.detail}\n{small}\nscript: {path}", markup=False, highlight=False, soft_wrap=True)
        if verdict.more:
            (self._folder / f"case-{case.seed}.txt").write_text(verdict.more, encoding="utf-8")
            self._console.print(verdict.more[-1500:], markup=False, highlight=False, soft_wrap=True)

    def _report_dependent(self, case: Case, verdict: Verdict, alone: Verdict) -> None:
        folder = self._folder / f"case-{case.seed}-behind-others"
        folder.mkdir(exist_ok=True)
        for number, source in enumerate([*verdict.before[-_RECENT:], render(case)]):
            (folder / f"{number}.py").write_text(source, encoding="utf-8")
        self._console.rule(f"seed {case.seed}: {verdict.kind}, which depends on what ran before")
        told = f"{verdict.detail}\nalone: {alone.kind}\n{case}\nthe last scripts of these processes: {folder}"
        self._console.print(told, markup=False, highlight=False, soft_wrap=True)
        self._console.print(verdict.more[-1500:], markup=False, highlight=False, soft_wrap=True)
