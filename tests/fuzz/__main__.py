"""`make fuzz`: draws cases until the time is over, and prints the smallest script of each that fails."""

import collections
import contextlib
import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
from rich.console import Console

from fuzz.case import Case, draw
from fuzz.pool import Pool
from fuzz.script import render
from fuzz.shrink import shrink
from fuzz.trial import Trial, Verdict

__all__ = ["main"]

_RECENT = 5  # scripts that are written down where a case fails only behind others


class Search:
    """Runs cases, and looks into each that fails.

    Args:
        trial: `Trial`.
        console: `rich.console.Console`.
        folder: Path. Where scripts go.
    """

    def __init__(self, trial: Trial, console: Console, folder: Path):
        self._trial, self._console, self._folder = trial, console, folder
        self.counts: collections.Counter = collections.Counter()
        self.refusals: collections.Counter = collections.Counter()
        self.values: collections.Counter = collections.Counter()
        self.found: list[tuple[Case, Verdict]] = []
        self._lock = threading.Lock()

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
        with self._lock:  # one at a time: a machine under load makes hangs of its own
            if any(
                small.chosen.items() <= case.chosen.items() and known.kind == verdict.kind
                for small, known in self.found
            ):
                return Verdict("found again", verdict.detail)
            alone = self._trial.run(case, alone=True)
            if not alone.fails:
                self._report_dependent(case, verdict, alone)
                return verdict
            small = shrink(case, lambda smaller: self._trial.run(smaller).cause == alone.cause)
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


def _fixed(_: object, __: object, texts: tuple[str, ...]) -> dict[str, str]:
    return dict(text.partition("=")[::2] for text in texts)


@click.command()
@click.option("--seed", type=int, default=0, show_default=True, help="Of the first case; the next have the next ones.")
@click.option("--minutes", type=float, default=10.0, show_default=True, help="No case begins after so long.")
@click.option("--cases", type=int, help="How many cases are drawn. Default: as many as there is time for.")
@click.option("--case", "single", metavar="SEED", help="Look into the case of this seed, or of a line of JSON, alone.")
@click.option("-n", "--workers", type=click.Choice(["1", "2", "3", "4"]), help="Of all cases. Default: drawn.")
@click.option("--set", "fixed", multiple=True, metavar="NAME=VALUE", callback=_fixed, help="A value that is not drawn.")
@click.option("--limit", type=float, default=120.0, show_default=True, help="Seconds that one training may take.")
@click.option("--jobs", type=int, default=2, show_default=True, help="How many cases are under way at once.")
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("fuzz-found"), show_default=True, help="For scripts."
)
@click.option("-v", "--verbose", is_flag=True, help="Print a line for each case.")
def main(
    seed: int,
    minutes: float,
    cases: int | None,
    single: str | None,
    workers: str | None,
    fixed: dict[str, str],
    limit: float,
    jobs: int,
    out: Path,
    verbose: bool,
) -> None:
    """Draw training scripts at random, and look for those that several processes train differently than one."""
    fixed |= {"workers": workers} if workers else {}
    out.mkdir(parents=True, exist_ok=True)
    console, end = Console(), time.monotonic() + 60 * minutes
    if single is not None:
        drawn = iter([draw(int(single), fixed) if single.lstrip("-").isdigit() else Case.parse(single)])
    else:
        seeds = itertools.count(seed) if cases is None else range(seed, seed + cases)
        drawn = (draw(number, fixed) for number in seeds)
    lock = threading.Lock()
    with Pool(limit) as pool:
        search = Search(Trial(pool), console, out)

        def work() -> None:
            while time.monotonic() < end or cases is not None:
                with lock:
                    case = next(drawn, None)
                if case is None:
                    return
                before = time.monotonic()
                verdict = search.look(case)
                if verbose or verdict.fails:
                    took = time.monotonic() - before
                    told = f"{case.seed} {took:.1f} s {verdict.kind} {verdict.detail[:300]}"
                    console.print(told, markup=False, highlight=False, soft_wrap=True)

        with ThreadPoolExecutor(jobs) as executor:
            for done in [executor.submit(work) for _ in range(jobs)]:
                done.result()
    total = sum(search.counts.values())
    console.print(f"{total} cases: " + ", ".join(f"{count} {kind}" for kind, count in search.counts.most_common()))
    for message, count in search.refusals.most_common():
        console.print(f"  refused {count} times: {message}", markup=False, highlight=False, soft_wrap=True)
    for small, verdict in search.found:
        told = f"FOUND {verdict.kind}: {verdict.detail[:200]}\n      {small}"
        console.print(told, markup=False, highlight=False, soft_wrap=True)
    raise SystemExit(bool(search.found or any(Verdict(kind).fails for kind in search.counts if kind != "found again")))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
