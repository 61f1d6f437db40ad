"""Count the operations of a training step over devices, and time its tracing.

    python benchmarks/tracing.py

Each number of devices has a process of its own, three times, in turns.
"""

import json
import os
import statistics
import subprocess
import sys
import time

DEVICES = [1, 2, 4, 8]
ROUNDS = 3


def trace() -> dict:
    """Return the seconds of tracing a step, when all variables are there, and the number of operations."""
    import keras
    import tensorflow as tf

    import easyscale
    from easyscale.bench.fit import build

    with easyscale.scope():
        model = build("mlp", "adam", 0)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(easyscale.DistributedOptimizer(keras.optimizers.Adam()), loss, jit_compile=False)
    specs = tf.TensorSpec((None, 784)), tf.TensorSpec((None,), tf.int32)
    for _ in range(2):
        start = time.perf_counter()
        step = tf.function(lambda x, y: model.distribute_strategy.run(model.train_step, args=((x, y),)))
        graph = step.get_concrete_function(*specs).graph
        seconds = time.perf_counter() - start
    inside = sum(len(function.node_def) for function in graph.as_graph_def().library.function)
    return {"seconds": seconds, "operations": len(graph.get_operations()) + inside}


def measure() -> dict[int, list[dict]]:
    found = {devices: [] for devices in DEVICES}
    for _ in range(ROUNDS):
        for devices, taken in found.items():
            variables = {"EASYSCALE_REPLICATION": "in_graph", "EASYSCALE_DEVICES": str(devices)}
            command = [sys.executable, __file__, "trace"]
            done = subprocess.run(
                command, env={**os.environ, **variables}, stdout=subprocess.PIPE, check=True, text=True
            )
            taken.append(json.loads(done.stdout.splitlines()[-1]))
    return found


def main() -> None:
    if sys.argv[1:] == ["trace"]:
        return print(json.dumps(trace()))
    found = measure()
    lines = ["| devices | operations | seconds to trace |", "|---|---|---|"]
    for devices, taken in found.items():
        seconds = statistics.median(run["seconds"] for run in taken)
        lines.append(f"| {devices} | {taken[0]['operations']:,} | {seconds:.2f} |")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
