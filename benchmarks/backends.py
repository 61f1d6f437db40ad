"""Measure Keras's three backends, alone and with EasyScale, beside what else trains on PyTorch and on JAX; in turns.

    .venv/bin/python benchmarks/backends.py [mlp-adam] [mlp-momentum] [resnet50] [--rounds 3]

Needs `make .venv/backends/torch/.done .venv/backends/jax/.done`. Each process has one core. Time is of a step, by the
clock and of a process's processor. Results go to benchmarks/results/backends.json, tables to docs/backends.md and
README.md. It takes half an hour.
"""

import argparse
import contextlib
import functools
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from compare import easyscale_group, peer_group
from pages import replace
from report import write_rows
from turns import Group
from workloads import WORKLOADS

from easyscale.bench.machine import describe_cpu

BESIDE = Path(__file__).parent.parent / ".venv" / "backends"
PYTHONS = {"tensorflow": sys.executable, **{name: str(BESIDE / name / "bin" / "python") for name in ("torch", "jax")}}
NAMES = {"tensorflow": "TensorFlow", "torch": "PyTorch", "jax": "JAX"}
PACKAGES = {name: (PYTHONS["tensorflow"], name) for name in ("easyscale", "keras", "tensorflow-cpu")}
PACKAGES |= {name: (PYTHONS[name], name) for name in ("torch", "jax")}
CLOCKS = "perf_counter", "process_time"
ROOT = Path(__file__).parent.parent


class Row(NamedTuple):
    """What is measured of one way to train.

    Attributes:
        name: String.
        turn: Function. Takes the name of a clock; returns the seconds of each step, by process.
        processes: Int.
        beside: String. The name of the row that has one process of the same.
    """

    name: str
    turn: Callable[..., list[list[float]]]
    processes: int
    beside: str


def rows_of(workload: str, stack: contextlib.ExitStack) -> list[Row]:
    """Start all processes of a workload, and return what can be measured of them."""

    def start(group: Group) -> Group:
        return stack.enter_context(group)

    rows = []
    for backend, python in PYTHONS.items():
        group = start(easyscale_group("train_keras.py", 2, workload, python=python, backend=backend))
        alone = f"Keras on {NAMES[backend]}"
        rows.append(
            Row(alone, lambda clock, group=group: group.turn(alone=True, together=False, clock=clock), 1, alone)
        )
        rows.append(Row(f"{alone}, EasyScale", functools.partial(group.turn, together=True), 2, alone))
    torch = start(peer_group("train_torch.py", 2, workload, python=PYTHONS["torch"], backend="torch"))
    alone = "PyTorch without Keras"
    rows.append(Row(alone, functools.partial(torch.turn, alone=True, together=False), 1, alone))
    rows.append(Row(f"{alone}, DDP", functools.partial(torch.turn, together=True), 2, alone))
    jax = start(peer_group("train_jax_parallel.py", 2, workload, python=PYTHONS["jax"], backend="jax"))
    rows.append(Row("Keras on JAX, DataParallel", jax.turn, 2, "Keras on JAX"))
    return rows


def measure(workload: str, rounds: int) -> list[dict]:
    with contextlib.ExitStack() as stack:
        rows = rows_of(workload, stack)
        times: dict[tuple[str, str], list[float]] = {(row.name, clock): [] for row in rows for clock in CLOCKS}
        for turn in range(1 + rounds):
            for row in rows:
                for clock in CLOCKS:
                    found = row.turn(clock=clock)
                    if turn:  # the first compiles
                        times[row.name, clock] += [statistics.mean(each) for each in zip(*found, strict=True)]
    return [
        {"workload": workload, "name": row.name, "processes": row.processes, "beside": row.beside, "clock": clock}
        | {"times": times[row.name, clock]}
        for row in rows
        for clock in CLOCKS
    ]


def _medians(rows: list[dict]) -> tuple[dict[tuple[str, str, str], float], list[str]]:
    """Return the median seconds of a step, by workload, way and clock; and the workloads."""
    medians = {(row["workload"], row["name"], row["clock"]): statistics.median(row["times"]) for row in rows}
    return medians, list(dict.fromkeys(row["workload"] for row in rows))


def table(rows: list[dict]) -> list[str]:
    """Return a row for each way: milliseconds of processor time and by the clock, and speed beside one process."""
    medians, measured = _medians(rows)
    lines = [
        "| ms of processor (by the clock); samples/s of a process, beside one process alone | "
        + " | ".join(WORKLOADS[key].title for key in measured)
        + " |",
        "|---|" + "---|" * len(measured),
    ]
    for name, processes, beside in dict.fromkeys((row["name"], row["processes"], row["beside"]) for row in rows):
        cells = []
        for key in measured:
            wall, processor = (1e3 * medians[key, name, clock] for clock in CLOCKS)
            cell = f"{processor:.0f} ({wall:.0f})"
            if processes > 1:
                cell += "; " + ", ".join(
                    f"{medians[key, beside, clock] / medians[key, name, clock]:.2f}" for clock in reversed(CLOCKS)
                )
            cells.append(cell)
        lines.append(f"| {name}, {processes} process{'es' * (processes > 1)} | {' | '.join(cells)} |")
    return lines


def speeds(rows: list[dict]) -> list[str]:
    """Return a row for each way of several processes: speed by the clock, beside one process of the same."""
    medians, measured = _medians(rows)
    lines = [f"| | {' | '.join(WORKLOADS[key].title for key in measured)} |", "|---" * (1 + len(measured)) + "|"]
    for name, beside in dict.fromkeys((row["name"], row["beside"]) for row in rows if row["processes"] > 1):
        cells = [f"{medians[key, beside, CLOCKS[0]] / medians[key, name, CLOCKS[0]]:.0%}" for key in measured]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def version(python: str, name: str) -> str:
    """Return the version of a package where `python` finds it."""
    line = f"import importlib.metadata as metadata; print(metadata.version('{name}'))"
    return subprocess.run([python, "-c", line], capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("workloads", nargs="*", default=list(WORKLOADS), help=", ".join(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if wrong := [name for name in options.workloads if name not in WORKLOADS]:
        sys.exit(f"a workload must be of {list(WORKLOADS)}. Received: {wrong[0]}")
    rows = []
    for workload in options.workloads:
        rows += measure(workload, options.rounds)
        print("\n".join(table(rows)), flush=True)
    machine = {"cpu": describe_cpu(), "cores": len(os.sched_getaffinity(0))}
    machine |= {package: version(*of) for package, of in PACKAGES.items()}
    write_rows("backends", rows, machine)
    replace(ROOT / "docs" / "backends.md", "backends", table(rows))
    source = f"On {machine['cores']} cores ({machine['cpu']}): [docs/backends.md](docs/backends.md)."
    replace(ROOT / "README.md", "backends", [*speeds(rows), "", source])


if __name__ == "__main__":
    main()
