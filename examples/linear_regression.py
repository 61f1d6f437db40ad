"""The smallest example: a script for one machine, and the same on all workers.

    easyscale launch -n 2 examples/linear_regression.py

The lines with a comment are those in which the two differ. Both take the same steps, so both find the same line.
"""

import keras
import numpy as np

import easyscale


def build_model():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def on_one_machine(x, y):
    model = build_model()
    model.fit(
        x,
        y,
        batch_size=96,
        epochs=10,
        shuffle=False,
        verbose=0,
    )
    return model


def on_all_workers(x, y):
    model = build_model()
    x, y = easyscale.shard(x, y)  # this worker's part of the data
    model.fit(
        x,
        y,
        batch_size=easyscale.local_batch(96),  # this worker's part of a batch
        epochs=10,
        shuffle=False,
        verbose=0,
        callbacks=[easyscale.callbacks.Distribute("ring")],  # gradients are averaged over all workers
    )
    return model


def line(model):
    slope, intercept = (weight.item() for weight in model.get_weights())
    return f"y = {slope:.5f} x + {intercept:.5f}"


x = np.random.default_rng(0).uniform(-1, 1, (960, 1)).astype("float32")
y = 3 * x + 2

together = on_all_workers(x, y)
if easyscale.is_chief():
    alone = on_one_machine(x, y)
    print(f"one machine: {line(alone)}")
    print(f"{easyscale.size()} worker(s): {line(together)}")
