"""Measure the two modes of replication beside TensorFlow's MirroredStrategy: a table of docs/benchmarks.md.

    python benchmarks/replication.py [mlp-adam] [mlp-momentum] [resnet50]

The same global batch on two cores: by two processes, by two logical CPU devices of one process, and by stock Keras
under `tf.distribute.MirroredStrategy` on such devices; in turns.
"""

import contextlib
import statistics
import sys
from pathlib import Path

from compare import ROUNDS, easyscale_group, imports
from pages import replace
from turns import Group
from workloads import WORKLOADS

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "benchmarks.md"
BETWEEN, IN_GRAPH, MIRRORED = "between-graph, 2 processes", "in-graph, 2 devices", "MirroredStrategy, 2 devices"


def one_process(key: str, stack: str) -> Group:
    environment = {"EASYSCALE_REPLICATION": "in_graph", "EASYSCALE_DEVICES": "2"} if stack == "easyscale" else {}
    command = [sys.executable, str(HERE / "peers" / "train_devices.py"), key, stack]
    return Group(stack, [command], pinned=False, environment=lambda rank: imports() | environment)


def measure(key: str) -> dict[str, list[float]]:
    """Return the seconds of each step, by way."""
    with contextlib.ExitStack() as stack:
        groups = {
            BETWEEN: stack.enter_context(easyscale_group("train_keras.py", 2, key)),
            IN_GRAPH: stack.enter_context(one_process(key, "easyscale")),
            MIRRORED: stack.enter_context(one_process(key, "mirrored")),
        }
        for group in groups.values():
            group.turn(together=True)  # traces
        times = {name: [] for name in groups}
        for _ in range(ROUNDS):
            for name, group in groups.items():
                found = group.turn(together=True)
                times[name] += [statistics.mean(each) for each in zip(*found, strict=True)]
    return times


def main() -> None:
    lines = [f"| | {BETWEEN} | {IN_GRAPH} | {MIRRORED} |", "|---|---|---|---|"]
    for key in sys.argv[1:] or WORKLOADS:
        times = {name: statistics.median(taken) for name, taken in measure(key).items()}
        cells = [f"{1e3 * taken:.0f} ms, {times[MIRRORED] / taken:.2f}" for taken in times.values()]
        lines.append(f"| {WORKLOADS[key].title} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    if len(sys.argv) == 1:
        replace(PAGE, "replication", lines)


if __name__ == "__main__":
    main()
