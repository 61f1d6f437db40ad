"""One process on one core: each of Keras's optimizers inside a `DistributedOptimizer`, beside itself alone, in turns.

    python benchmarks/optimizers.py [Adam SGD ...]

The model is the MLP of 24.2 million weights, with batches of 128. A ratio above 1 is how many times as fast a step is
that EasyScale has XLA compile the update of. Muon has an MLP with layers of 512: it multiplies matrices as large as the
weights, here for a minute in each step.
"""

import os
import sys

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"), "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import json  # noqa: E402
import statistics  # noqa: E402
import time  # noqa: E402
from pathlib import Path  # noqa: E402

import keras  # noqa: E402
import numpy as np  # noqa: E402
from workloads import CLASSES, WORKLOADS, steps_of  # noqa: E402

import easyscale  # noqa: E402
from easyscale.bench.fit import build  # noqa: E402

ROUNDS = 1
RESULT = Path(__file__).parent / "results" / "optimizers.json"
workload = WORKLOADS["mlp-adam"]
generator = np.random.default_rng(0)
x = generator.normal(size=(workload.samples, *workload.shape)).astype("float32")
y = generator.integers(0, CLASSES, workload.samples)


def optimizers():
    """One of each of Keras's optimizers, by name, and SGD with momentum."""
    wrapping = (keras.optimizers.LossScaleOptimizer, getattr(keras.optimizers, "MultiOptimizer", ()))
    found = {
        name: value
        for name, value in vars(keras.optimizers).items()
        if isinstance(value, type) and issubclass(value, keras.optimizers.Optimizer)
        if value is not keras.optimizers.Optimizer and not issubclass(value, wrapping)
    }
    return found | {"SGD with momentum": lambda: keras.optimizers.SGD(0.01, momentum=0.9)}


def small(optimizer):
    """An MLP of 0.7 million weights."""
    units = [keras.layers.Dense(512, activation="relu") for _ in range(2)]
    model = keras.Sequential([keras.Input(workload.shape), *units, keras.layers.Dense(CLASSES)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile=False)
    return model


def measure(make):
    """Return the seconds of each step, alone and distributed."""
    optimizers = make(), easyscale.DistributedOptimizer(make())
    is_slow = type(optimizers[0]).__name__ == "Muon"
    models = [small(optimizer) if is_slow else build(workload.model, optimizer, 0) for optimizer in optimizers]
    times = [[], []]
    for turn in range(1 + ROUNDS):
        for model, taken in zip(models, times, strict=True):
            ends = []
            clock = keras.callbacks.LambdaCallback(
                on_train_batch_end=lambda batch, logs, ends=ends: ends.append(time.perf_counter())
            )
            model.fit(x, y, batch_size=workload.batch, shuffle=False, verbose=0, callbacks=[clock])
            taken += steps_of(ends) if turn else []
    return times


def main():
    rows = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    for name, make in optimizers().items():
        if len(sys.argv) > 1 and name not in sys.argv[1:]:
            continue
        alone, distributed = rows[name] = [statistics.median(taken) for taken in measure(make)]
        print(
            f"{name:20} {1e3 * alone:7.0f} ms alone, {1e3 * distributed:7.0f} ms: {alone / distributed:.2f}", flush=True
        )
        RESULT.parent.mkdir(exist_ok=True)
        RESULT.write_text(json.dumps(rows, indent=1) + "\n")
        keras.backend.clear_session()


main()
