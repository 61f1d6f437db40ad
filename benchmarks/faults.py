"""What becomes of a job in which a rank fails: each kind of fault, at each moment, with each exchange, on three ranks.

    python benchmarks/faults.py --json benchmarks/results/faults.json     # about an hour; begun anew it goes on
    python benchmarks/faults.py --table benchmarks/results/faults.json    # writes the table of docs/faults.md

It starts the training of `tests/faults/training.py`, with checkpoints every 5 steps. What is called "ring, elastic" is
started with `--elastic`, and "ring, elastic, sharded" has a sharded update as well.
"""

import argparse
import json
import math
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "faults"))

import harness  # noqa: E402
from pages import replace  # noqa: E402

EXCHANGES = ("shared_memory", "ring", "mpi", "tree", "hierarchical", "parameter_server")
MOMENTS = ("before step 1", "mid-epoch", "validation", "checkpoint", "last step")
ANYTIME = ("sigkill", "sigstop", "callback", "exit3", "exit0", "memory", "sigterm")
GOES_ON = ("sigkill", "callback", "memory")
ONCE = (("script", "before step 1"), ("tracing", "before step 1"), ("data", "mid-epoch"))
DISK = ("full disk", "truncated", "bit-flipped")
ELASTIC = [f"{name}, elastic" for name in EXCHANGES[:-1]] + ["ring, elastic, sharded"]
STALL, LIMIT = 10.0, 240.0  # seconds


def cases() -> list[tuple[str, str, str]]:
    """All faults in the middle of an epoch for all exchanges first, then the other moments."""
    found = [
        (exchange, fault, "mid-epoch")
        for fault in ("sigkill", "sigstop", "exit3", "callback")
        for exchange in EXCHANGES
    ]
    found += [("shared_memory", fault, moment) for fault, moment in ONCE]
    found += [("ring", fault, "checkpoint") for fault in DISK]
    found += [(exchange, "sigkill", moment) for moment in ("mid-epoch", "checkpoint") for exchange in ELASTIC]
    found += [("ring", fault, moment) for moment in MOMENTS for fault in ANYTIME]
    found += [
        (exchange, fault, when) for when in MOMENTS if when != "checkpoint" for fault in GOES_ON for exchange in ELASTIC
    ]
    found += [(exchange, fault, moment) for moment in MOMENTS for fault in ANYTIME for exchange in EXCHANGES]
    return [case for case in dict.fromkeys(found) if case[1:] != ("exit0", "last step")]


def run(exchange: str, fault: str, moment: str) -> dict:
    """Run one case; return what became of it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        options = ["-n", "3", "--stall-timeout", f"{STALL:g}"]
        if fault in DISK:
            return _run_on_disk(exchange, fault, folder, options)
        exchange, *ways = exchange.split(", ")
        options += ["--elastic"] * ("elastic" in ways)
        update = ["sharded"] * ("sharded" in ways)

        def start(*arguments):
            return harness.launch(
                harness.TRAINING, [exchange, *arguments, name, *update], folder, *options, limit=LIMIT
            )

        outcome = start(fault, moment)
        before = _last_step(folder)
        again = start("none", "none") if fault in ("sigkill", "sigterm") and outcome.code else outcome
        return _row(outcome, again, before)


def _run_on_disk(exchange: str, fault: str, folder: Path, options: list[str]) -> dict:
    def start(*arguments):
        return harness.launch(harness.TRAINING, [exchange, *arguments, str(folder)], folder, *options, limit=LIMIT)

    if fault == "full disk":
        target = folder / "checkpoints"
        target.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24k", "tmpfs", str(target)], check=True)
        try:
            outcome = start("none", "none")
        finally:
            subprocess.run(["umount", str(target)], check=True)
        return _row(outcome, outcome, 0)
    start("sigkill", "last step")
    newest = max((folder / "checkpoints").glob("step-*"), key=lambda path: path.name)
    data = bytearray(newest.read_bytes())
    if fault == "truncated":
        del data[len(data) // 2 :]
    else:
        data[len(data) // 2] ^= 1
    newest.write_bytes(data)
    before = _last_step(folder)
    outcome = start("none", "none")
    return _row(outcome, outcome, before)


def _last_step(folder: Path) -> int:
    steps = [int(path.name.split("-")[1]) for path in (folder / "checkpoints").glob("step-*")]
    return max(steps, default=0)


def _row(outcome: harness.Outcome, again: harness.Outcome, before: int) -> dict:
    ours = ("easyscale: ", "EasyScaleWarning")
    said = [line for line in outcome.errors.splitlines() if any(prefix in line for prefix in ours)]
    named = re.search(r"rank (\d)", " ".join(said))
    finished = re.search(r"steps (\d+)", again.output)
    return {
        "code": outcome.code,
        "seconds": outcome.seconds,
        "report": outcome.report,
        "named": int(named[1]) if named else None,
        "hangs": int(outcome.code is None),
        "orphans": len(outcome.orphans),
        "left": len(outcome.left),
        "checkpoint": before,
        "finished": int(finished[1]) if finished and again.code == 0 else None,
    }


_FAULTS = {  # as the table names them
    "sigkill": "SIGKILL",
    "sigstop": "SIGSTOP",
    "sigterm": "SIGTERM",
    "callback": "exception in the script",
    "script": "exception in the script",
    "tracing": "exception in the script",
    "data": "exception in the script",
    "memory": "`MemoryError`",
    "exit0": "`sys.exit(0)`",
    "exit3": "`sys.exit(3)`",
    "full disk": "disk is full",
    "truncated": "last checkpoint damaged",
    "bit-flipped": "last checkpoint damaged",
}


def table(results: dict[str, dict]) -> list[str]:
    """Return the Markdown table of what was measured: a row for each fault, over all moments and exchanges."""
    groups: dict[tuple[bool, str], dict[str, dict]] = {}
    for key, row in results.items():
        exchange, fault, _ = key.split("/")
        groups.setdefault((", elastic" in exchange, _FAULTS[fault]), {})[key] = row
    order = [*dict.fromkeys(_FAULTS.values())]
    lines = ["| fault | exit code | job over after | reported after |", "|---|---|---|---|"]
    for (is_elastic, fault), rows in sorted(groups.items(), key=lambda item: (item[0][0], order.index(item[0][1]))):
        lines.append(
            f"| {fault}{', `--elastic`' * is_elastic} | {_different(rows, 'code')} | "
            f"{_longest(rows, 'seconds')} | {_longest(rows, 'report')} |"
        )
    hangs, orphans, left = (sum(row[name] for row in results.values()) for name in ("hangs", "orphans", "left"))
    lines += ["", f"In all {len(results)} cases: {hangs} hangs, {orphans} processes left, {left} files left."]
    return lines


def _different(rows: dict[str, dict], name: str) -> str:
    found = sorted({row[name] for row in rows.values()}, key=lambda value: (value is None, value))
    return ", ".join("-" if value is None else str(value) for value in found)


def _longest(rows: dict[str, dict], name: str) -> str:
    found = [row[name] for row in rows.values() if not math.isnan(row[name])]
    return f"{max(found):.1f} s" if found else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--count", type=int, help="so many cases at most")
    wanted = parser.parse_args()
    if wanted.table:
        replace(ROOT / "docs" / "faults.md", "faults", table(json.loads(wanted.table.read_text())))
        return
    results = json.loads(wanted.json.read_text()) if wanted.json.exists() else {}
    for case in [case for case in cases() if "/".join(case) not in results][: wanted.count]:
        results["/".join(case)] = row = run(*case)
        print("/".join(case), row, flush=True)
        wanted.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
