"""What split layers save between two emulated hosts: bytes, and time, of a step.

    sudo .venv/bin/python benchmarks/split_layers.py [--rate 1gbit] [--rounds 5] [--models mlp,vgg16,words]

Each host has one process, one core, and a link of `--rate` in each direction. `mlp` is 784-4096-4096-1024-10 with 128
samples on each; `vgg16` is Keras's, of images of 64 x 64, with 16; `words` is a block of a transformer of 256 numbers
between an embedding and logits of 32,000 words, with 4 samples of 64 words. They train with SGD with momentum, as stock
Keras without an exchange, in data parallelism by `ring`, and with layers split beside it: by `"auto"`, and those of
`words` by rows, heads and vocabulary. Ways take turns, on the same
ranks, and times are medians; bytes are what a rank's communicator has counted. Needs root on Linux, iproute2 and
util-linux.
"""

import argparse
import json
import os
import statistics
import sys
import time

SETTLING = 2  # steps at the begin of each turn that do not count
ALONE, DATA, SPLIT = "Keras, no exchange", "data parallel", "layers split"
WAYS = (ALONE, DATA, SPLIT)
SIZE, CLASSES = 64, 1000
SAMPLES = {"mlp": 128, "vgg16": 16, "words": 4}  # on each host
LAYERS = {"words": {"embedding": "rows", "attention": "heads", "logits": "vocabulary"}}
WORDS, LENGTH, WIDTH = 32_000, 64, 256


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--models", default="mlp,vgg16,words")
    parser.add_argument("--exchange", default="ring")
    parser.add_argument("--onednn", default="on")
    options = parser.parse_args()
    if "OMPI_COMM_WORLD_RANK" in os.environ:
        return work(options)
    import two_hosts

    said = two_hosts.run(__file__, sys.argv[1:], options.rate, options.onednn)
    for line in said:
        if line.startswith("{"):
            show(json.loads(line), options)
    print(*dict.fromkeys(line for line in said if line.startswith("EasyScale:")), sep="\n")


def show(measured: dict, options: argparse.Namespace) -> None:
    ways = measured["ways"]
    print(
        f"\n{measured['model']}, {measured['samples']} samples on each of 2 hosts, {options.exchange}, {options.rate}"
    )
    print(f"{'':22} {'ms a step':>10} {'more than alone':>16} {'MB sent':>9}")
    for name in WAYS:
        step, sent = ways[name]["seconds"], ways[name]["bytes"]
        print(f"{name:22} {1e3 * step:10.0f} {1e3 * (step - ways[ALONE]['seconds']):16.0f} {sent / 1e6:9.1f}")
    network = [ways[name]["seconds"] - ways[ALONE]["seconds"] for name in (SPLIT, DATA)]
    print(f"a step is {ways[DATA]['seconds'] / ways[SPLIT]['seconds']:.2f} times as fast", end="; ")
    print(f"time beside computing {network[0] / network[1]:.2f}", end="; ")
    print(f"bytes {ways[SPLIT]['bytes'] / ways[DATA]['bytes']:.2f}")


def work(options: argparse.Namespace) -> None:
    """What each rank runs."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(os.environ["OMPI_COMM_WORLD_RANK"]) % len(cores)]})
    threads = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "2"}
    os.environ.update(threads)
    import keras
    import numpy as np

    import easyscale
    from easyscale.bench.fit import build
    from easyscale.callbacks import Distribute
    from easyscale.parallel import Split

    def words() -> keras.Model:
        word = keras.Input((LENGTH,), dtype="int32")
        x = keras.layers.Embedding(WORDS, WIDTH, name="embedding")(word)
        y = keras.layers.LayerNormalization()(x)
        x = x + keras.layers.MultiHeadAttention(4, 64, name="attention")(y, y, use_causal_mask=True)
        y = keras.layers.Dense(4 * WIDTH, activation="gelu")(keras.layers.LayerNormalization()(x))
        x = keras.layers.LayerNormalization()(x + keras.layers.Dense(WIDTH)(y))
        model = keras.Model(word, keras.layers.Dense(WORDS, name="logits")(x))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss)
        return model

    def data(name: str, count: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        if name == "words":
            text = generator.integers(0, WORDS, (count, LENGTH + 1))
            return text[:, :-1], text[:, 1:]
        shape, classes = ((784,), 10) if name == "mlp" else ((SIZE, SIZE, 3), CLASSES)
        return generator.normal(size=(count, *shape)).astype("float32"), generator.integers(0, classes, count)

    communicator, marks = easyscale.communicator.get(), []
    end = keras.callbacks.CallbackList.on_train_batch_end

    def timed(callbacks, batch, logs=None):
        marks.append((time.perf_counter(), communicator.sent.bytes))
        end(callbacks, batch, logs)

    keras.callbacks.CallbackList.on_train_batch_end = timed  # no callback: those may look at weights

    def measure(name: str) -> dict:
        samples, generator = SAMPLES[name], np.random.default_rng(communicator.rank)
        x, y = data(name, samples * (SETTLING + options.steps), generator)
        classes = 10 if name == "mlp" else CLASSES
        models = {way: words() if name == "words" else build(name, "momentum", SIZE, classes) for way in WAYS}
        seconds: dict[str, list[float]] = {way: [] for way in WAYS}
        sent: dict[str, list[float]] = {way: [] for way in WAYS}
        for turn in range(1 + options.rounds):  # the first traces
            for way, model in models.items():
                parallel = Split(LAYERS.get(name, "auto")) if way == SPLIT else None
                distribute = Distribute(options.exchange, model_parallel=parallel, check_every=10**6)
                callbacks = [] if way == ALONE else [distribute]
                marks.clear()
                communicator.barrier()
                model.fit(x, y, batch_size=samples, shuffle=False, verbose=2 * (turn == 0), callbacks=callbacks)
                steps = communicator.all_gather_rows(np.diff(np.array(marks[SETTLING - 1 :]), axis=0)).max(axis=0)
                if turn:
                    seconds[way] += steps[:, 0].tolist()
                    sent[way].append(steps[:, 1].mean())  # some travel while the next step begins
        median = statistics.median
        ways = {way: {"seconds": median(seconds[way]), "bytes": median(sent[way])} for way in WAYS}
        return {"model": name, "samples": samples, "ways": ways}

    for name in options.models.split(","):
        measured = measure(name)
        if communicator.rank == 0:
            print(json.dumps(measured), flush=True)


if __name__ == "__main__":
    main()
