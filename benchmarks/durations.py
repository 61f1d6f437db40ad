"""Sum up the seconds that each file of tests takes, from what pytest prints with `--durations=0 -vv`.

    .venv/bin/pytest -vv --durations=0 --numprocesses 3 --dist loadgroup >log
    .venv/bin/python benchmarks/durations.py log

The time of a launch is that of the first check it runs. Tests that run in parallel each count in full.
"""

import json
import re
from collections import Counter
from pathlib import Path

import click

RESULTS = Path(__file__).with_name("results") / "tests.json"


def durations(text: str) -> dict:
    """Return seconds, number of tests, and the longest single test of each file, the longest file first."""
    seconds: Counter[str] = Counter()
    tests: Counter[str] = Counter(
        re.findall(r"^\[gw\d+\] \[ *\d+%\] (?:PASSED|FAILED|SKIPPED) ([^:\s]+)::", text, re.MULTILINE)
    )
    longest: dict[str, float] = {}
    for took, name in re.findall(r"^ *([\d.]+)s (?:call|setup|teardown) +([^:\s]+)::", text, re.MULTILINE):
        seconds[name] += float(took)
        longest[name] = max(longest.get(name, 0.0), float(took))
    return {
        name: {"seconds": round(total), "tests": tests[name], "longest": round(longest[name], 1)}
        for name, total in seconds.most_common()
    }


@click.command(help=__doc__)
@click.argument("log", type=click.Path(exists=True, dir_okay=False))
def main(log: str) -> None:
    found = durations(Path(log).read_text(errors="replace"))
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    total = sum(file["seconds"] for file in found.values())
    for name, file in list(found.items())[:30]:
        click.echo(f"{file['seconds']:6d} s {file['seconds'] / total:5.1%} {file['tests']:5d} tests  {name}")
    click.echo(f"{total} s in {len(found)} files")


if __name__ == "__main__":
    main()
