"""`make fuzz`: draws cases until the time is over, and prints the smallest script of each that fails."""

import itertools
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TextIO

import click
from rich.console import Console

from fuzz.case import Case, draw
from fuzz.dimensions.backends import MISSING
from fuzz.pool import Pool
from fuzz.search import Search
from fuzz.trial import Trial

__all__ = ["main"]


def _stopped() -> threading.Event:
    """Return what is set by the first signal to end; by the second the process ends as ever."""
    event = threading.Event()

    def stop(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        event.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    return event


def _fixed(_: object, __: object, texts: tuple[str, ...]) -> dict[str, str]:
    return dict(text.partition("=")[::2] for text in texts)


@click.command()
@click.option("--seed", type=int, default=0, show_default=True, help="Of the first case; the next have the next ones.")
@click.option("--minutes", type=float, default=10.0, show_default=True, help="No case begins after so long.")
@click.option("--cases", type=int, help="How many cases are drawn. Default: as many as there is time for.")
@click.option("--case", "single", metavar="SEED", help="Look into the case of this seed, or of a line of JSON, alone.")
@click.option("-n", "--workers", type=click.Choice(["1", "2", "3", "4"]), help="Of all cases. Default: drawn.")
@click.option("--set", "fixed", multiple=True, metavar="NAME=VALUE", callback=_fixed, help="A value that is not drawn.")
@click.option(
    "--backend", type=click.Choice(["tensorflow", *MISSING]), default="tensorflow", show_default=True, help="Of Keras."
)
@click.option("--limit", type=float, default=120.0, show_default=True, help="Seconds that one training may take.")
@click.option("--jobs", type=int, default=2, show_default=True, help="How many cases are under way at once.")
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("fuzz-found"), show_default=True, help="For scripts."
)
@click.option("--known", type=click.File(), help="Lines of JSON, as they are printed: failures that need no new look.")
@click.option("-v", "--verbose", is_flag=True, help="Print a line for each case.")
def main(
    seed: int,
    minutes: float,
    cases: int | None,
    single: str | None,
    workers: str | None,
    fixed: dict[str, str],
    backend: str,
    limit: float,
    jobs: int,
    out: Path,
    known: TextIO | None,
    verbose: bool,
) -> None:
    """Draw training scripts at random, and look for those that several processes train differently than one.

    After Ctrl-C no case begins.
    """
    fixed = MISSING.get(backend, {}) | fixed | ({"workers": workers} if workers else {})
    out.mkdir(parents=True, exist_ok=True)
    console, end = Console(), time.monotonic() + 60 * minutes
    if single is not None:
        drawn = iter([draw(int(single), fixed) if single.lstrip("-").isdigit() else Case.parse(single)])
    else:
        seeds = itertools.count(seed) if cases is None else range(seed, seed + cases)
        drawn = (draw(number, fixed) for number in seeds)
    lock, stopped = threading.Lock(), _stopped()
    with Pool(limit, backend=backend) as pool:
        search = Search(Trial(pool), console, out, [Case.parse(line) for line in known or () if line.strip()], fixed)

        def work() -> None:
            while (time.monotonic() < end or cases is not None) and not stopped.is_set():
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
    raise SystemExit(search.failed)


if __name__ == "__main__":
    main()
