"""Measure Keras's three backends, alone and with EasyScale, beside what else trains on PyTorch and on JAX; in turns.

    .venv/bin/python benchmarks/backends.py [mlp-adam] [mlp-momentum] [resnet50] [--rounds 3]

Needs `make .venv/backends/torch/.done .venv/backends/jax/.done`. Each process has one core. Time is of a step, by the
clock and of a process's processor. Results go to benchmarks/results/backends.json, a table and a plot to
docs/benchmarks.md, and a table to README.md. It takes half an hour.
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
from report import PAGE, described, plot_backends, write_rows
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
    """Return a row for each way: milliseconds of a step, and throughput relative to one process."""
    medians, measured = _medians(rows)
    lines = [f"| | {' | '.join(WORKLOADS[key].title for key in measured)} |", "|---" * (1 + len(measured)) + "|"]
    for name, processes, beside in dict.fromkeys((row["name"], row["processes"], row["beside"]) for row in rows):
        cells = []
        for key in measured:
            seconds = medians[key, name, CLOCKS[0]]
            cell = f"{1e3 * seconds:.0f} ms"
            cells.append(cell if processes == 1 else f"{cell}, {medians[key, beside, CLOCKS[0]] / seconds:.0%}")
        lines.append(f"| {name}, {processes} process{'es' * (processes > 1)} | {' | '.join(cells)} |")
    return lines


def speeds(rows: list[dict]) -> list[str]:
    """Return a row for each way of several processes: throughput of each, relative to one process of the same."""
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
    plot_backends(rows, machine)
    link = "[backends.json](../benchmarks/results/backends.json)"
    replace(PAGE, "backends", [*table(rows), "", f"{described(machine)}. Medians of {options.rounds} rounds: {link}."])
    source = f"On {machine['cores']} cores ({machine['cpu']}): [docs/benchmarks.md](docs/benchmarks.md)."
    replace(ROOT / "README.md", "backends", [*speeds(rows), "", source])


if __name__ == "__main__":
    main()
