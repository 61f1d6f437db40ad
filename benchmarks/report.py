"""The output of `compare.py`: JSON with every time, plots, and the tables of docs/alternatives.md."""

import json
import os
import statistics
from pathlib import Path

from pages import replace
from workloads import WORKLOADS

__all__ = [
    "STACKS",
    "SUMS",
    "plot_sums",
    "plot_training",
    "read",
    "sums_table",
    "training_table",
    "write",
    "write_rows",
]

HERE = Path(__file__).parent
RESULTS = HERE / "results"
ALTERNATIVES = HERE.parent / "docs" / "alternatives.md"
PAGES = {"sums": [ALTERNATIVES], "training": [ALTERNATIVES]}

SUMS = ["shared_memory", "ring", "MPI_Allreduce", "Gloo"]
STACKS = {"EasyScale": "Keras 3", "MultiWorkerMirroredStrategy": "tf_keras", "PyTorch DDP": "PyTorch"}


def read(name: str) -> list[dict]:
    """Return the rows that `write` has written, or none."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text())["rows"] if path.exists() else []


def write(name: str, rows: list[dict], table: list[str], machine: dict, rounds: int) -> None:
    """Write rows as JSON, and their table to its pages."""
    write_rows(name, rows, machine)
    where = f"{machine['cores']} cores ({machine['cpu']})"
    for page in PAGES[name]:
        link = os.path.relpath(RESULTS / f"{name}.json", page.parent)
        source = f"On {where}, medians of {rounds} turns: [{name}.json]({link})."
        replace(page, name, [*table, "", source])
    print("\n".join(table))


def write_rows(name: str, rows: list[dict], machine: dict) -> None:
    """Write rows as JSON."""
    RESULTS.mkdir(exist_ok=True)
    rounded = [{**row, "times": [float(f"{seconds:.4g}") for seconds in row["times"]]} for row in rows]
    lines = ",\n".join(map(json.dumps, rounded))
    RESULTS.joinpath(f"{name}.json").write_text(f'{{"machine": {json.dumps(machine)},\n"rows": [\n{lines}\n]}}\n')


def sums_table(rows: list[dict]) -> list[str]:
    medians = {(row["ranks"], row["bytes"], row["exchange"]): statistics.median(row["times"]) for row in rows}
    lines = [
        "| processes | vector | `shared_memory` | `ring` | `MPI_Allreduce` | Gloo | beside MPI | beside Gloo |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for ranks, nbytes in dict.fromkeys((row["ranks"], row["bytes"]) for row in rows):
        of = {name: medians[ranks, nbytes, name] for name in SUMS}
        ours = of["shared_memory"]
        cells = [_seconds(of[name]) for name in SUMS]
        ratios = [f"{of[name] / ours:.1f} times as fast" for name in ("MPI_Allreduce", "Gloo")]
        lines.append(f"| {ranks} | {_bytes(nbytes)} | {' | '.join([*cells, *ratios])} |")
    return lines


def efficiency(rows: list[dict], workload: str, stack: str, beside: str = "alone") -> float:
    """How many times as many samples a process trains on in the same time as one `alone`, or `apart`."""
    of = {row["way"]: row["times"] for row in rows if (row["workload"], row["stack"]) == (workload, stack)}
    return statistics.median(of[beside]) / statistics.median(of["together"])


def _measured(rows: list[dict]) -> list[str]:
    return [key for key in WORKLOADS if any(row["workload"] == key for row in rows)]


def training_table(rows: list[dict]) -> list[str]:
    lines = [
        f"| | in | {' | '.join(WORKLOADS[key].title for key in _measured(rows))} |",
        f"|---|---|{'---|' * len(_measured(rows))}",
    ]
    for stack, of in STACKS.items():
        cells = [f"{efficiency(rows, key, stack):.0%}" for key in _measured(rows)]
        lines.append(f"| {stack} | {of} | {' | '.join(cells)} |")
    return lines


def plot_sums(rows: list[dict], machine: dict) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    numbers = list(dict.fromkeys(row["ranks"] for row in rows))
    for axes, ranks in zip(figure.subplots(1, len(numbers)), numbers, strict=True):
        for name in SUMS:
            own = [row for row in rows if (row["ranks"], row["exchange"]) == (ranks, name)]
            at = [row["bytes"] for row in own]
            deciles = [statistics.quantiles(row["times"], n=10) for row in own]
            (line,) = axes.plot(at, [1e6 * statistics.median(row["times"]) for row in own], marker="o", label=name)
            low, high = ([1e6 * row_deciles[end] for row_deciles in deciles] for end in (0, -1))
            axes.fill_between(at, low, high, alpha=0.15, color=line.get_color())
        axes.set(title=f"{ranks} processes", xscale="log", yscale="log", xlabel="bytes", ylabel="µs")
        axes.grid(True, alpha=0.3)
        axes.legend()
    figure.suptitle(f"sum of a float32 vector, median and 10 % to 90 %, on {machine['cores']} cores ({machine['cpu']})")
    figure.savefig(RESULTS / "sums.png", dpi=110)


def plot_training(rows: list[dict], machine: dict) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.subplots()
    for number, stack in enumerate(STACKS):
        values = [efficiency(rows, key, stack) for key in _measured(rows)]
        bars = axes.bar([index + 0.27 * (number - 1) for index in range(len(values))], values, 0.25, label=stack)
        axes.bar_label(bars, [f"{value:.0%}" for value in values])
    axes.axhline(1, color="gray", linestyle=":")
    axes.set_xticks(range(len(values)), [WORKLOADS[key].title for key in _measured(rows)], fontsize=8)
    axes.set(ylabel="throughput of each of two processes,\nbeside one alone in the same stack")
    axes.legend()
    figure.suptitle(f"{machine['cores']} cores ({machine['cpu']})")
    figure.savefig(RESULTS / "training.png", dpi=110)


def _seconds(value: float) -> str:
    return f"{1e3 * value:.1f} ms" if value >= 1e-3 else f"{1e6 * value:.0f} µs"


def _bytes(value: int) -> str:
    return f"{value // 10**6} MB" if value >= 10**6 else f"{value // 1000} KB"
