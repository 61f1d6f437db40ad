"""The output of `compare.py` and `backends.py`: JSON with every time, plots, and the tables of docs/benchmarks.md.

    python benchmarks/report.py

draws the plots again, from the JSON in benchmarks/results.
"""

import json
import os
import statistics
from pathlib import Path

from pages import replace
from workloads import WORKLOADS

__all__ = [
    "PAGE",
    "STACKS",
    "SUMS",
    "described",
    "plot_backends",
    "plot_sums",
    "plot_suite",
    "read",
    "sums_table",
    "training_table",
    "write",
    "write_rows",
]

HERE = Path(__file__).parent
RESULTS = HERE / "results"
PAGE = HERE.parent / "docs" / "benchmarks.md"

SHOWN = (4_000, 100_000_000)  # bytes of the vectors in the page's table; the plot has all
SUMS = ["shared_memory", "ring", "MPI_Allreduce", "Gloo"]
STACKS = {"EasyScale": "Keras 3", "MultiWorkerMirroredStrategy": "tf_keras", "PyTorch DDP": "PyTorch"}


def read(name: str) -> dict:
    """Return the machine and the rows that `write_rows` has written; no rows if there are none."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {"rows": []}


def described(machine: dict) -> str:
    """Return the processor and the versions that a table's figures are from."""
    packages = {
        "EasyScale": "easyscale",
        "Keras": "keras",
        "TensorFlow": "tensorflow-cpu",
        "PyTorch": "torch",
        "JAX": "jax",
        "Open MPI": "openmpi",
    }
    versions = [f"{name} {machine[key].removesuffix('+cpu')}" for name, key in packages.items() if key in machine]
    return f"{machine['cores']} cores ({machine['cpu']}); {', '.join(versions)}"


def write(name: str, rows: list[dict], table: list[str], machine: dict, rounds: int) -> None:
    """Write rows as JSON, and their table to the page."""
    write_rows(name, rows, machine)
    link = os.path.relpath(RESULTS / f"{name}.json", PAGE.parent)
    source = f"{described(machine)}. Medians of {rounds} rounds: [{name}.json]({link})."
    replace(PAGE, name, [*table, "", source])
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
        "| processes | vector | `shared_memory` | `ring` | `MPI_Allreduce` | Gloo | speed-up over MPI | over Gloo |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for ranks, nbytes in dict.fromkeys((row["ranks"], row["bytes"]) for row in rows):
        if nbytes not in SHOWN:
            continue
        of = {name: medians[ranks, nbytes, name] for name in SUMS}
        ours = of["shared_memory"]
        cells = [_seconds(of[name]) for name in SUMS]
        ratios = [f"{of[name] / ours:.1f}" for name in ("MPI_Allreduce", "Gloo")]
        lines.append(f"| {ranks} | {_bytes(nbytes)} | {' | '.join([*cells, *ratios])} |")
    return lines


def efficiency(rows: list[dict], workload: str, stack: str, beside: str = "alone") -> float:
    """Return the throughput of each of two processes, relative to one `alone`, or to one of two `apart`."""
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
    for axes, ranks in zip(figure.subplots(1, len(numbers), sharey=True), numbers, strict=True):
        for name in SUMS:
            own = [row for row in rows if (row["ranks"], row["exchange"]) == (ranks, name)]
            at = [row["bytes"] for row in own]
            deciles = [statistics.quantiles(row["times"], n=10) for row in own]
            (line,) = axes.plot(at, [statistics.median(row["times"]) for row in own], marker="o", label=name)
            low, high = ([row_deciles[end] for row_deciles in deciles] for end in (0, -1))
            axes.fill_between(at, low, high, alpha=0.15, color=line.get_color())
        axes.set(title=f"{ranks} processes", xscale="log", yscale="log", xlabel="size of the vector")
        axes.set_xticks(at, [_bytes(nbytes) for nbytes in at], minor=False)
        axes.set_xticks([], minor=True)
        axes.yaxis.set_major_formatter(lambda seconds, _: _tick(seconds))
        axes.grid(True, alpha=0.3)
    axes.legend(loc="lower right")
    figure.suptitle(f"Time to sum a float32 vector: median, 10 % to 90 %. {machine['cores']} cores ({machine['cpu']})")
    figure.savefig(RESULTS / "sums.png", dpi=110)


def plot_backends(rows: list[dict], machine: dict) -> None:
    """Draw the throughput of each process of several, relative to one process of the same framework."""
    from matplotlib.figure import Figure

    medians = {
        (row["workload"], row["name"]): statistics.median(row["times"])
        for row in rows
        if row["clock"] == "perf_counter"
    }
    ways = dict.fromkeys((row["name"], row["beside"]) for row in rows if row["processes"] > 1)
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    axes = figure.subplots()
    measured = _measured(rows)
    for number, (name, beside) in enumerate(ways):
        values = [medians[key, beside] / medians[key, name] for key in measured]
        at = [index + 0.17 * (number - (len(ways) - 1) / 2) for index in range(len(measured))]
        bars = axes.bar(at, values, 0.16, label=name, hatch="" if "EasyScale" in name else "//", edgecolor="white")
        axes.bar_label(bars, [f"{value:.0%}" for value in values], fontsize=8)
    axes.axhline(1, color="gray", linestyle=":")
    axes.set_xticks(range(len(measured)), [WORKLOADS[key].title for key in measured], fontsize=9)
    axes.set(ylabel="throughput of each of 2 processes,\nrelative to 1 process of the same framework")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.legend(fontsize=8)
    figure.suptitle(f"{machine['cores']} cores ({machine['cpu']})")
    figure.savefig(RESULTS / "backends.png", dpi=110)


def plot_suite(rows: list[dict], machine: dict) -> None:
    """Draw the throughput of the classic models on two ranks, relative to one rank that has all cores."""
    from matplotlib.figure import Figure

    speeds = {(row["model"], row["ranks"], row["way"]): row["samples/s"] for row in rows}
    models = list(dict.fromkeys(row["model"] for row in rows))
    ways = list(dict.fromkeys(row["way"] for row in rows))
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    axes = figure.subplots()
    for number, way in enumerate(ways):
        at = [index + 0.16 * (number - (len(ways) - 1) / 2) for index in range(len(models))]
        values = [speeds[model, 2, way] / speeds[model, 1, "auto"] for model in models]
        axes.bar(at, values, 0.15, label=way, edgecolor="white")
    axes.axhline(1, color="gray", linestyle=":")
    names = [f"{model}\n{speeds[model, 1, 'auto']:g}/s" for model in models]
    axes.set_xticks(range(len(models)), names, fontsize=9)
    axes.set(ylabel="samples/s of 2 ranks, or 2 devices,\nrelative to 1 rank with both cores", ylim=(0, 1.7))
    axes.legend(fontsize=8, ncols=len(ways), loc="upper center")
    figure.suptitle(f"{machine['cores']} cores ({machine['cpu']}); below each model the samples/s of 1 rank")
    figure.savefig(RESULTS / "suite.png", dpi=110)


def _seconds(value: float) -> str:
    return f"{1e3 * value:.1f} ms" if value >= 1e-3 else f"{1e6 * value:.0f} µs"


def _bytes(value: int) -> str:
    return f"{value // 10**6} MB" if value >= 10**6 else f"{value // 1000} KB"


def _tick(value: float) -> str:
    return f"{1e3 * value:g} ms" if value >= 1e-3 else f"{1e6 * value:g} µs"


def main() -> None:
    for name, plot in (("sums", plot_sums), ("backends", plot_backends), ("suite", plot_suite)):
        found = read(name)
        plot(found["rows"], found["machine"])


if __name__ == "__main__":
    main()
