"""What EasyScale adds to steps that take a millisecond, beside stock Keras, and what DDP adds to PyTorch.

    python benchmarks/small_steps.py [--rounds 5]

Every process has one core. Time is of a step: by the clock, and processor time of one process, which says more where
other things run. Groups of processes take turns; medians. PyTorch is left out where it is not installed.
"""

import argparse
import contextlib
import importlib.util
import statistics
import sys
from pathlib import Path

from compare import HERE, imports, peer_group
from turns import Group

EPOCHS = 3


def keras_group(name: str, ranks: int, ways: list[str]) -> Group:
    script = str(HERE / "peers" / "small_keras.py")
    launch = [str(Path(sys.executable).with_name("easyscale")), "launch", "-n", str(ranks), script, *ways]
    line = launch if ranks > 1 else [sys.executable, script, *ways]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"), "1")
    return Group(name, [line], ranks, pinned=ranks == 1, environment=lambda rank: imports() | threads)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with contextlib.ExitStack() as stack:
        stock = stack.enter_context(keras_group("stock", 1, ["stock"]))
        single = stack.enter_context(keras_group("one process with Distribute", 1, ["shared_memory"]))
        two = stack.enter_context(keras_group("two processes", 2, ["shared_memory", "ring"]))
        rows = [
            ("stock Keras, one process", stock, "stock", "stock Keras, one process"),
            ("one process with Distribute", single, "shared_memory", "stock Keras, one process"),
            ("two processes, shared_memory", two, "shared_memory", "stock Keras, one process"),
            ("two processes, ring", two, "ring", "stock Keras, one process"),
        ]
        if importlib.util.find_spec("torch"):
            torch = stack.enter_context(peer_group("small_torch.py", 1, "alone"))
            ddp = stack.enter_context(peer_group("small_torch.py", 2, "ddp"))
            rows += [("PyTorch, one process", torch, "", "PyTorch, one process")]
            rows += [("DDP with Gloo, two processes", ddp, "", "PyTorch, one process")]
        walls, processors = ({name: [] for name, *_ in rows} for _ in range(2))
        for turn in range(1 + rounds):
            for name, group, way, _ in rows:
                ranks = group.turn(way=way, epochs=EPOCHS)
                if turn:
                    walls[name] += [max(epoch) for epoch in zip(*(times[::2] for times in ranks), strict=True)]
                    processors[name] += [time for times in ranks for time in times[1::2]]
    print(f"{'':32} {'µs of processor':>16} {'beside':>7} {'µs by the clock':>16} {'samples/s, beside':>18}")
    for name, group, _, beside in rows:
        processor, wall = (statistics.median(of[name]) for of in (processors, walls))
        added = processor / statistics.median(processors[beside])
        speed = group.size * statistics.median(walls[beside]) / wall
        print(f"{name:32} {processor * 1e6:16,.0f} {added:7.2f} {wall * 1e6:16,.0f} {speed:18.2f}")


if __name__ == "__main__":
    main()
