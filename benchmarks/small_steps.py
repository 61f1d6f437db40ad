"""What EasyScale adds to steps that take a millisecond, beside stock Keras, and what DDP adds to PyTorch.

    python benchmarks/small_steps.py [--rounds 5] [--backends tensorflow]

Every process has one core. Time is of a step: by the clock, and processor time of one process, which says more where
other things run. Groups of processes take turns; medians. PyTorch is left out where it is not installed; Keras on it,
and on JAX, need `make .venv/backends/torch/.done .venv/backends/jax/.done`.
"""

import argparse
import contextlib
import importlib.util
import os
import statistics
import sys
from pathlib import Path

from backends import NAMES, PYTHONS
from compare import HERE, imports, peer_group
from turns import Group

EPOCHS = 3


def keras_group(backend: str, name: str, ranks: int, ways: list[str]) -> Group:
    script, python = str(HERE / "peers" / "small_keras.py"), PYTHONS[backend]
    launch = [python, "-m", "easyscale", "launch", "-n", str(ranks), script, *ways]
    line = launch if ranks > 1 else [python, script, *ways]
    own = imports() | dict.fromkeys(("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"), "1")
    own |= {"KERAS_BACKEND": backend, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    return Group(name, [line], ranks, pinned=ranks == 1, environment=lambda rank: own)


def rows_of(backend: str, stack: contextlib.ExitStack) -> list[tuple[str, Group, str, str]]:
    """Start the processes of a backend; return for each way its name, group and order, and what it is beside."""

    def start(name: str, ranks: int, *ways: str) -> Group:
        return stack.enter_context(keras_group(backend, name, ranks, list(ways)))

    alone = f"{NAMES[backend]}: stock Keras, one process"
    stock, single = start("stock", 1, "stock"), start("one process with Distribute", 1, "shared_memory")
    two = start("two processes", 2, "shared_memory", "ring")
    return [
        (alone, stock, "stock", alone),
        (f"{NAMES[backend]}: one process with Distribute", single, "shared_memory", alone),
        (f"{NAMES[backend]}: two processes, shared_memory", two, "shared_memory", alone),
        (f"{NAMES[backend]}: two processes, ring", two, "ring", alone),
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--backends", default="tensorflow", help="such as tensorflow,torch,jax")
    args = parser.parse_args()
    with contextlib.ExitStack() as stack:
        rows = [row for backend in args.backends.split(",") for row in rows_of(backend, stack)]
        if importlib.util.find_spec("torch"):
            torch = stack.enter_context(peer_group("small_torch.py", 1, "alone"))
            ddp = stack.enter_context(peer_group("small_torch.py", 2, "ddp"))
            rows += [("PyTorch, one process", torch, "", "PyTorch, one process")]
            rows += [("DDP with Gloo, two processes", ddp, "", "PyTorch, one process")]
        walls, processors = ({name: [] for name, *_ in rows} for _ in range(2))
        for turn in range(1 + args.rounds):
            for name, group, way, _ in rows:
                ranks = group.turn(way=way, epochs=EPOCHS)
                if turn:
                    walls[name] += [max(epoch) for epoch in zip(*(times[::2] for times in ranks), strict=True)]
                    processors[name] += [time for times in ranks for time in times[1::2]]
    print(f"{'':46} {'µs of processor':>16} {'beside':>7} {'µs by the clock':>16} {'samples/s, beside':>18}")
    for name, group, _, beside in rows:
        processor, wall = (statistics.median(of[name]) for of in (processors, walls))
        added = processor / statistics.median(processors[beside])
        speed = group.size * statistics.median(walls[beside]) / wall
        print(f"{name:46} {processor * 1e6:16,.0f} {added:7.2f} {wall * 1e6:16,.0f} {speed:18.2f}")


if __name__ == "__main__":
    main()
