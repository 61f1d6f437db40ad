"""Measure EasyScale beside what else there is, on the same work and in turns: `make bench`.

    python benchmarks/compare.py [sums] [training]

All that is compared runs at the same time, but only one group of processes works while the others sleep. Results go to
benchmarks/results/ as JSON, with every single time, and as plots; the tables go to README.md. It takes half an hour.
"""

import contextlib
import importlib.metadata
import json
import os
import platform
import statistics
import sys
from pathlib import Path

from pages import replace
from turns import Group
from workloads import WORKLOADS

from easyscale.machine import describe_cpu

HERE = Path(__file__).parent
RESULTS = HERE / "results"
README = HERE.parent / "README.md"

SIZES = {4_000: 300, 64_000: 300, 1_000_000: 60, 16_000_000: 8, 100_000_000: 3}  # bytes: repetitions in a turn
RANKS = [2, 4]
SUMS = ["shared_memory", "ring", "MPI_Allreduce", "Gloo"]
ROUNDS = 3  # turns for each, after one that does not count

KERAS, TF_KERAS, TORCH = "EasyScale", "MultiWorkerMirroredStrategy", "PyTorch DDP"
STACKS = {KERAS: "Keras 3", TF_KERAS: "tf_keras", TORCH: "PyTorch"}


def easyscale_group(script: str, ranks: int, *arguments: str) -> Group:
    command = [str(Path(sys.executable).with_name("easyscale")), "launch", "-n", str(ranks)]
    # The launcher gives each process its cores.
    line = [*command, str(HERE / "peers" / script), *arguments]
    return Group(script, [line], ranks, pinned=False, environment=lambda rank: _imports())


def peer_group(script: str, ranks: int, *arguments: str, pinned: bool = True) -> Group:
    """Processes that find each other by what torch.distributed and TensorFlow read from the environment."""
    ports = _free_ports(ranks)

    def environment(rank: int) -> dict[str, str]:
        cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
        torch = {"RANK": rank, "WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": ports[0]}
        threads = dict.fromkeys(("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"), 1)
        config = {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})}
        return _imports() | {name: str(value) for name, value in (torch | threads | config).items()}

    command = [sys.executable, str(HERE / "peers" / script), *arguments]
    return Group(script, [command] * ranks, pinned=pinned, environment=environment)


def _imports() -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])}


def _free_ports(count: int) -> list[int]:
    import socket

    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    [one.close() for one in sockets]
    return ports


# Sums of vectors


def measure_sums() -> list[dict]:
    """Return a row for each number of ranks, size and exchange, with the slowest rank's seconds of each repetition."""
    rows = []
    for ranks in RANKS:
        with easyscale_group("sum_easyscale.py", ranks) as ours, peer_group("sum_gloo.py", ranks, pinned=False) as gloo:
            for nbytes, repeats in SIZES.items():
                times = {name: [] for name in SUMS}
                for turn in range(1 + ROUNDS):
                    for name, taken in times.items():
                        group = gloo if name == "Gloo" else ours
                        found = group.turn(exchange=name, nbytes=nbytes, repeats=repeats)
                        taken += [max(each) for each in zip(*found, strict=True)] if turn else []
                rows += [{"ranks": ranks, "bytes": nbytes, "exchange": name, "times": times[name]} for name in SUMS]
                print(f"{ranks} ranks, {nbytes:,} bytes:", _medians(times, 1e6), "µs", flush=True)
    return rows


def sums_table(rows: list[dict]) -> list[str]:
    medians = {(row["ranks"], row["bytes"], row["exchange"]): statistics.median(row["times"]) for row in rows}
    lines = [
        "| processes | vector | `shared_memory` | `ring` | `MPI_Allreduce` | Gloo | beside MPI | beside Gloo |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for ranks in RANKS:
        for nbytes in SIZES:
            of = {name: medians[ranks, nbytes, name] for name in SUMS}
            ours = of["shared_memory"]
            cells = [_seconds(of[name]) for name in SUMS]
            ratios = [f"{of[name] / ours:.1f} times as fast" for name in ("MPI_Allreduce", "Gloo")]
            lines.append(f"| {ranks} | {_bytes(nbytes)} | {' | '.join([*cells, *ratios])} |")
    return lines


# Training


def measure_training() -> list[dict]:
    """Return a row for each workload and stack and way, with the seconds of each step, the mean over processes."""
    rows = []
    ways = {"alone": (True, False), "apart": (False, False), "together": (False, True)}
    for key, workload in WORKLOADS.items():
        times = {(stack, way): [] for way in ways for stack in STACKS}
        with contextlib.ExitStack() as stack:
            groups = {
                KERAS: stack.enter_context(easyscale_group("train_keras.py", 2, key)),
                TF_KERAS: stack.enter_context(peer_group("train_tf_keras.py", 2, key)),
                TORCH: stack.enter_context(peer_group("train_torch.py", 2, key)),
            }
            for group in groups.values():
                group.turn(together=False), group.turn(together=True)  # traces
            for _ in range(ROUNDS):
                for (name, way), taken in times.items():
                    alone, together = ways[way]
                    found = groups[name].turn(alone=alone, together=together)
                    taken += [statistics.mean(each) for each in zip(*found, strict=True)]
        rows += [{"workload": key, "stack": name, "way": way, "times": taken} for (name, way), taken in times.items()]
        shown = {f"{name} {way}": taken for (name, way), taken in times.items()}
        print(f"{workload.title}:", _medians(shown, 1e3), "ms", flush=True)
    return rows


def efficiency(rows: list[dict], workload: str, stack: str, beside: str = "alone") -> float:
    """How many times as many samples a process trains on in the same time as one `alone`, or `apart`."""
    of = {row["way"]: row["times"] for row in rows if (row["workload"], row["stack"]) == (workload, stack)}
    return statistics.median(of[beside]) / statistics.median(of["together"])


def training_table(rows: list[dict]) -> list[str]:
    lines = [
        f"| | in | {' | '.join(workload.title for workload in WORKLOADS.values())} |",
        f"|---|---|{'---|' * len(WORKLOADS)}",
    ]
    for stack, of in STACKS.items():
        cells = [f"{efficiency(rows, key, stack):.0%}" for key in WORKLOADS]
        lines.append(f"| {stack} | {of} | {' | '.join(cells)} |")
    return lines


# What is written


def describe() -> dict:
    """Return machine and versions."""
    packages = ["easyscale", "tensorflow-cpu", "keras", "tf_keras", "torch", "openmpi", "mpi4py", "numpy"]
    return {
        "cpu": describe_cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in packages},
    }


def write(name: str, rows: list[dict], table: list[str], machine: dict) -> None:
    RESULTS.mkdir(exist_ok=True)
    rounded = [{**row, "times": [float(f"{seconds:.4g}") for seconds in row["times"]]} for row in rows]
    lines = ",\n".join(map(json.dumps, rounded))
    RESULTS.joinpath(f"{name}.json").write_text(f'{{"machine": {json.dumps(machine)},\n"rows": [\n{lines}\n]}}\n')
    where = f"{machine['cores']} cores ({machine['cpu']})"
    source = f"On {where}, medians of {ROUNDS} turns: [{name}.json](benchmarks/results/{name}.json)."
    replace(README, name, [*table, "", source])
    print("\n".join(table))


def plot_sums(rows: list[dict], machine: dict) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    for axes, ranks in zip(figure.subplots(1, len(RANKS)), RANKS, strict=True):
        for name in SUMS:
            own = [row for row in rows if (row["ranks"], row["exchange"]) == (ranks, name)]
            at = [row["bytes"] for row in own]
            deciles = [statistics.quantiles(row["times"], n=10) for row in own]
            (line,) = axes.plot(at, [1e6 * statistics.median(row["times"]) for row in own], marker="o", label=name)
            low, high = ([1e6 * one[place] for one in deciles] for place in (0, -1))
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
        values = [efficiency(rows, key, stack) for key in WORKLOADS]
        bars = axes.bar([place + 0.27 * (number - 1) for place in range(len(WORKLOADS))], values, 0.25, label=stack)
        axes.bar_label(bars, [f"{value:.0%}" for value in values])
    axes.axhline(1, color="gray", linestyle=":")
    axes.set_xticks(range(len(WORKLOADS)), [workload.title for workload in WORKLOADS.values()], fontsize=8)
    axes.set(ylabel="throughput of each of two processes,\nbeside one alone in the same stack")
    axes.legend()
    figure.suptitle(f"{machine['cores']} cores ({machine['cpu']})")
    figure.savefig(RESULTS / "training.png", dpi=110)


def _medians(times: dict[str, list[float]], factor: float) -> str:
    return ", ".join(f"{name} {factor * statistics.median(taken):.1f}" for name, taken in times.items())


def _seconds(value: float) -> str:
    return f"{1e3 * value:.1f} ms" if value >= 1e-3 else f"{1e6 * value:.0f} µs"


def _bytes(value: int) -> str:
    return f"{value // 10**6} MB" if value >= 10**6 else f"{value // 1000} KB"


def main() -> None:
    machine = describe()
    chosen = sys.argv[1:] or ["sums", "training"]
    if "sums" in chosen:
        rows = measure_sums()
        write("sums", rows, sums_table(rows), machine)
        plot_sums(rows, machine)
    if "training" in chosen:
        rows = measure_training()
        write("training", rows, training_table(rows), machine)
        plot_training(rows, machine)


if __name__ == "__main__":
    main()
