"""What a split embedding saves of a recommender on one node: samples per second, and memory of a process.

    python benchmarks/recommender.py [--ranks 4] [--rows 2000000] [--batch 4096] [--rounds 3]

The model looks up 8 features of each sample in one table of `--rows` rows of 64 numbers, and has two dense layers
behind; Adam. In data parallelism by `ring` every process has the whole table, and rows of gradients travel. With
`Split({"table": "rows"})` each has its part of the rows, and what is looked up travels. Ways take turns, a launch for
each, and figures are medians. Memory is the largest of a process, less that of one that has only loaded Keras: resident
behind the last step, and at its peak until then, which has the whole table as it is built. Behind `fit()` every process
has everything again; that is not in it. In data parallelism 4 processes with 2,000,000 rows need more than 24 GB:
`--rows 1000000` fits.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import psutil

WIDTH, FEATURES, STEPS = 64, 8, 8
WAYS = ("data parallel", "split by rows")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--way", choices=WAYS)
    options = parser.parse_args()
    if options.way:
        return train(options)
    found = {way: [] for way in WAYS}
    for _ in range(options.rounds):
        for way in WAYS:
            found[way].append(launch(options, way))
    medians = {
        way: {name: statistics.median(row[name] for row in rows) for name in rows[0]} for way, rows in found.items()
    }
    for way, row in medians.items():
        print(f"{way:14} {row['rate']:9,.0f} samples/s  {row['resident']:7,.0f} MB  {row['peak']:7,.0f} MB at the peak")
    data, split = medians.values()
    print(f"{split['rate'] / data['rate']:.2f} times as fast", end="; ")
    print(f"{split['resident'] / data['resident']:.2f} of the memory, {split['peak'] / data['peak']:.2f} at the peak")


def launch(options, way):
    command = [str(Path(sys.executable).with_name("easyscale")), "launch", "-n", str(options.ranks), __file__]
    command += ["--rows", str(options.rows), "--batch", str(options.batch), "--way", way]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    found = [line for line in done.stdout.splitlines() if line.startswith("found ")]
    if done.returncode or not found:
        sys.exit(f"{options.ranks} processes must train. Received: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return json.loads(found[-1].removeprefix("found "))


def train(options):
    import keras
    import numpy as np

    import easyscale

    keras.ops.convert_to_numpy(keras.ops.ones(3))  # what is loaded by the first operation
    empty = np.array(_memory())
    keras.utils.set_random_seed(1)
    inputs = keras.Input((FEATURES,), dtype="int32")
    x = keras.layers.Flatten()(keras.layers.Embedding(options.rows, WIDTH, name="table")(inputs))
    outputs = keras.layers.Dense(1, "sigmoid")(keras.layers.Dense(256, "relu")(x))
    model = keras.Model(inputs, outputs)
    model.compile("adam", "binary_crossentropy", jit_compile=False)
    split = easyscale.parallel.Split({"table": "rows"}) if options.way == WAYS[1] else None
    distribute = easyscale.callbacks.Distribute("ring", model_parallel=split)
    generator = np.random.default_rng(0)
    x = generator.integers(0, options.rows, (options.batch * STEPS, FEATURES), dtype="int32")
    y = generator.integers(0, 2, (len(x), 1)).astype("float32")
    ends, memory = [], []

    class Notes(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            ends.append(time.perf_counter())

        def on_epoch_end(self, epoch, logs=None):
            memory[:] = [_memory()]

    x, y = easyscale.shard(x, y)
    batch = easyscale.local_batch(options.batch)
    model.fit(x, y, batch_size=batch, epochs=2, shuffle=False, verbose=0, callbacks=[distribute, Notes()])
    seconds = statistics.median(np.diff(ends[STEPS:]))
    row = np.array([options.batch / seconds, *(np.array(memory[0]) - empty) / 1e6])
    rows = easyscale.communicator.get().all_gather_rows(row)
    if easyscale.is_chief():
        names = ("rate", "resident", "peak")
        print("found", json.dumps(dict(zip(names, [rows[0, 0], *rows[:, 1:].max(axis=0)], strict=True))))


def _memory():
    """The resident memory of this process, and its peak, in bytes."""
    return psutil.Process().memory_info().rss, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
