"""Measure EasyScale beside what else there is, on the same work and in turns: `make bench`.

    python benchmarks/compare.py [sums] [mlp-adam] [mlp-momentum] [resnet50]

All that is compared runs at the same time, but only one group of processes works while the others sleep. Results go to
benchmarks/results/ as JSON, with every single time, and as plots; tables go to docs/benchmarks.md. It takes half an
hour.
"""

import contextlib
import importlib.metadata
import json
import os
import platform
import statistics
import sys
from pathlib import Path

from report import STACKS, SUMS, plot_sums, read, sums_table, training_table, write
from turns import Group
from workloads import WORKLOADS

from easyscale import onednn
from easyscale.bench.machine import describe_cpu

HERE = Path(__file__).parent
SIZES = {4_000: 300, 64_000: 300, 1_000_000: 60, 16_000_000: 8, 100_000_000: 3}  # bytes: repetitions in a turn
RANKS = [2, 4]
ROUNDS = 3  # turns for each, after one that does not count

KERAS, TF_KERAS, TORCH = STACKS


def easyscale_group(
    script: str,
    ranks: int,
    *arguments: str,
    in_graph: bool = False,
    python: str = sys.executable,
    backend: str = "tensorflow",
) -> Group:
    command = [python, "-m", "easyscale", "launch", "-n", str(ranks)]
    command += ["--replication", "in_graph"] if in_graph else []
    # The launcher gives each process its cores.
    line = [*command, str(HERE / "peers" / script), *arguments]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # where mpirun is
    own = imports() | {"KERAS_BACKEND": backend, "PATH": path}
    return Group(script, [line], 1 if in_graph else ranks, pinned=False, environment=lambda rank: own)


def peer_group(
    script: str,
    ranks: int,
    *arguments: str,
    pinned: bool = True,
    python: str = sys.executable,
    backend: str = "tensorflow",
) -> Group:
    """Processes that find each other by what torch.distributed and TensorFlow read from the environment."""
    ports = _free_ports(ranks)

    def environment(rank: int) -> dict[str, str]:
        cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
        torch = {"RANK": rank, "WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": ports[0]}
        threads = dict.fromkeys(("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"), 1)
        config = {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})}
        own = torch | threads | config | {"KERAS_BACKEND": backend}
        return imports() | {name: str(value) for name, value in own.items()}

    command = [python, str(HERE / "peers" / script), *arguments]
    return Group(script, [command] * ranks, pinned=pinned, environment=environment)


def imports() -> dict[str, str]:
    path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    # TensorFlow computes with the same kernels whoever starts it.
    return {"PYTHONPATH": path} | onednn.variables("auto", os.environ)


def _free_ports(count: int) -> list[int]:
    import socket

    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [opened.getsockname()[1] for opened in sockets]
    [opened.close() for opened in sockets]
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


# Training


def measure_training(key: str) -> list[dict]:
    """Return a row for each stack and way of one workload, with the seconds of each step, the mean over processes."""
    ways = {"alone": (True, False), "apart": (False, False), "together": (False, True)}
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
    shown = {f"{name} {way}": taken for (name, way), taken in times.items()}
    print(f"{WORKLOADS[key].title}:", _medians(shown, 1e3), "ms", flush=True)
    return [{"workload": key, "stack": name, "way": way, "times": taken} for (name, way), taken in times.items()]


def describe() -> dict:
    """Return machine and versions."""
    packages = ["easyscale", "tensorflow-cpu", "keras", "tf_keras", "torch", "openmpi", "mpi4py", "numpy"]
    return {
        "cpu": describe_cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in packages},
    }


def _medians(times: dict[str, list[float]], factor: float) -> str:
    return ", ".join(f"{name} {factor * statistics.median(taken):.1f}" for name, taken in times.items())


def main() -> None:
    machine = describe()
    chosen = sys.argv[1:] or ["sums", *WORKLOADS]
    if wrong := [name for name in chosen if name not in ("sums", *WORKLOADS)]:
        sys.exit(f"what to measure must be of {['sums', *WORKLOADS]}. Received: {wrong[0]}")
    for name in chosen:
        if name == "sums":
            rows = measure_sums()
            write("sums", rows, sums_table(rows), machine, ROUNDS)
            plot_sums(rows, machine)
        else:
            rows = [row for row in read("training")["rows"] if row["workload"] != name] + measure_training(name)
            write("training", rows, training_table(rows), machine, ROUNDS)


if __name__ == "__main__":
    main()
