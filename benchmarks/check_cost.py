"""What it costs to compare the workers' weights every 100 steps, as a part of the time of those steps.

easyscale launch -n 2 benchmarks/check_cost.py
"""

import statistics
import time

import keras
import numpy as np

import easyscale
from easyscale.callbacks import Distribute

STEPS = 40


def mlp(*units):
    layers = [keras.layers.Dense(number, activation="relu") for number in units]
    model = keras.Sequential([keras.Input((784,)), *layers, keras.layers.Dense(10)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


for name, units, batch in (("50 thousand weights", (64,), 16), ("24 million weights", (4096, 4096, 1024), 128)):
    model, ends = mlp(*units), []
    clock = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs, ends=ends: ends.append(time.perf_counter())
    )
    generator = np.random.default_rng(easyscale.rank())
    x, y = generator.normal(size=(batch * STEPS, 784)).astype("float32"), generator.integers(0, 10, batch * STEPS)
    model.fit(x, y, batch_size=batch, verbose=0, callbacks=[Distribute(check_every=STEPS * 2), clock])
    checks = []
    for _ in range(20):
        start = time.perf_counter()
        model.optimizer.workers.replicas.check_equal(model.trainable_variables, STEPS)
        checks.append(time.perf_counter() - start)
    step, check = statistics.median(np.diff(ends[5:])), statistics.median(checks)
    if easyscale.is_chief():
        fraction = check / 100 / step
        print(f"{name}: a step {step * 1e3:.2f} ms, a comparison {check * 1e3:.2f} ms: {fraction:.3%} of 100 steps")
