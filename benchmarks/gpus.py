"""What the exchange of tensors on GPUs takes, through the CPU's memory and without it: sums, and steps of training.

    KERAS_BACKEND=torch easyscale launch -n 2 benchmarks/gpus.py [sums] [mlp-adam] [resnet50]
        [--batch SAMPLES] [--rounds 5] [--json FILE]

On torch or JAX, with CuPy. Ranks may share a GPU: then each has about half of it, which the rows without an exchange
show. Ways take turns; times are medians of the slowest rank, in ms.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable

import keras
import numpy as np

import easyscale
from easyscale import backend as backends
from easyscale.callbacks import Distribute
from easyscale.exchange.on_gpus import for_gpus

COMM = easyscale.communicator.get()
STAGED = ["shared_memory", "ring"]
PIECES = 1 << 24  # bytes
SIZES = [1_000_000, 16_000_000, 100_000_000]
STEPS, SKIPPED = 20, 5


def settle(model: keras.Model | None = None) -> None:
    """Return when the GPU has done what was begun, with a model."""
    if keras.backend.backend() == "torch":
        import torch

        torch.cuda.synchronize()
    elif model is not None:
        model.jax_state_sync()
        float(np.asarray(model.trainable_variables[-1])[0])


def slowest(function: Callable[[], None]) -> float:
    """Return the ms that a function takes on the slowest rank."""
    settle()
    COMM.barrier()
    start = time.perf_counter()
    function()
    settle()
    return 1e3 * max(COMM.all_gather_object(time.perf_counter() - start))


def exchanges() -> list[str]:
    """Return the names of those for GPUs that work here, and of some that go through the CPU's memory."""
    own = [name for name in ("cuda_ipc", "nccl") if name in easyscale.exchange.available()]
    usable = []
    for name in own:
        try:
            for_gpus(easyscale.exchange.get(name, COMM))
        except ValueError as error:
            if COMM.is_chief:
                print(f"without {name}: {error}", flush=True)
        else:
            usable.append(name)
    return [*usable, *STAGED]


def sums(rounds: int) -> list[dict]:
    """Sums of one tensor over all ranks, from a GPU to a GPU."""
    calls = backends.get().host_calls()
    ways: dict[tuple[str, int], Callable[[], None]] = {}
    for name in exchanges():
        exchange = for_gpus(easyscale.exchange.get(name, COMM))
        for nbytes in SIZES:
            tensor = keras.ops.ones((nbytes // 4,), "float32")

            def way(exchange=exchange, tensor=tensor, length=nbytes // 4) -> None:
                def total(array: np.ndarray) -> list[np.ndarray]:
                    vector = exchange.lend(length, "float32")
                    vector[...] = array
                    exchange.allreduce(vector)
                    return [vector]

                (result,) = calls(total, [tensor], [((length,), np.dtype("float32"))], int(exchange.on_gpus))
                assert float(result[0]) == float(result[-1]) == COMM.size

            ways[name, nbytes] = way
    times: dict[tuple[str, int], list[float]] = {way: [] for way in ways}
    for turn in range(1 + rounds):
        for key, way in ways.items():
            found = slowest(way)
            if turn:
                times[key].append(found)
    return [{"what": f"{nbytes // 1_000_000} MB", "way": name, "ms": found} for (name, nbytes), found in times.items()]


class Clock(keras.callbacks.Callback):
    """The ms of a step, of those behind the first ones."""

    ms = 0.0

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        if batch in (SKIPPED - 1, STEPS - 1):
            settle(self.model)
            now = time.perf_counter()
            self.ms = 1e3 * (now - self._start) / (STEPS - SKIPPED) if batch == STEPS - 1 else 0.0
            self._start = now


def mlp(optimizer: keras.optimizers.Optimizer) -> keras.Model:
    """The MLP of 24.2 M weights."""
    widths = [4096, 4096, 1024]
    layers = [keras.Input((784,)), *(keras.layers.Dense(width, activation="relu") for width in widths)]
    model = keras.Sequential([*layers, keras.layers.Dense(10)])
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def resnet50(optimizer: keras.optimizers.Optimizer) -> keras.Model:
    """ResNet50 for images of 64 x 64."""
    model = keras.applications.ResNet50(weights=None, input_shape=(64, 64, 3), classes=10, classifier_activation=None)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


MODELS = {
    "mlp-adam": (lambda: mlp(keras.optimizers.Adam()), (784,), 128),
    "resnet50": (lambda: resnet50(keras.optimizers.SGD(0.01, momentum=0.9)), (64, 64, 3), 16),
}


def steps(workload: str, rounds: int, batch: int | None) -> list[dict]:
    """Steps within a `fit()`: alone, all ranks at once without an exchange, and with each."""
    build, shape, usual = MODELS[workload]
    batch = batch or usual
    rng = np.random.default_rng(COMM.rank)
    x, y = rng.normal(size=(STEPS * batch, *shape)).astype("float32"), rng.integers(0, 10, STEPS * batch)

    def trainer(*callbacks: keras.callbacks.Callback) -> Callable[[], float]:
        keras.utils.set_random_seed(0)
        model, clock = build(), Clock()

        def train() -> float:
            model.fit(x, y, batch_size=batch, shuffle=False, verbose=0, callbacks=[*callbacks, clock])
            return clock.ms

        return train

    ways = {"one process alone": trainer(), "without an exchange": trainer()}
    for name in exchanges():
        ways[name] = trainer(Distribute(name))
        if name in STAGED:
            ways[f"{name}, in pieces"] = trainer(Distribute(name, bucket_bytes=PIECES))
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(1 + rounds):
        for name, train in ways.items():
            COMM.barrier()
            found = 0.0 if name == "one process alone" and not COMM.is_chief else train()
            found = max(COMM.all_gather_object(found))
            if turn:
                times[name].append(found)
            elif COMM.is_chief:
                print(f"{workload}, {name}: {found:.1f} ms in a turn that does not count", file=sys.stderr, flush=True)
    return [{"what": workload, "way": name, "ms": found} for name, found in times.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=["sums", *MODELS])
    parser.add_argument("--batch", type=int, help="per rank; by default as other benchmarks have it")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json")
    options = parser.parse_args()
    rows = []
    for part in options.parts:
        found = sums(options.rounds) if part == "sums" else steps(part, options.rounds, options.batch)
        for row in found:
            if COMM.is_chief:
                low, high = min(row["ms"]), max(row["ms"])
                text = f"{keras.backend.backend():6} {row['what']:9} {row['way']:24}"
                print(f"{text} {statistics.median(row['ms']):8.2f} ms ({low:.2f} to {high:.2f})", flush=True)
        rows += found
    if options.json and COMM.is_chief:
        with open(options.json, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
