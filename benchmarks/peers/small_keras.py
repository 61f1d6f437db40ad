"""Trains a model whose step takes a millisecond, with stock Keras or with EasyScale. `small_steps.py` starts it."""

import sys
import time

import keras
import numpy as np
from turns import serve
from workloads import SMALL, SMALL_BATCH, SMALL_STEPS

ways = sys.argv[1:]  # an exchange, or "stock"
layers = [keras.layers.Dense(units, activation="relu") for units in SMALL[1:-1]]
model = keras.Sequential([keras.Input((SMALL[0],)), *layers, keras.layers.Dense(SMALL[-1])])
callbacks = {"stock": []}
rank = 0
if ways != ["stock"]:
    import easyscale

    rank = easyscale.rank()
    callbacks = {way: [easyscale.callbacks.Distribute(way)] for way in ways}
generator = np.random.default_rng(rank)
x = generator.normal(size=(SMALL_BATCH * SMALL_STEPS, SMALL[0])).astype("float32")
y = generator.integers(0, SMALL[-1], len(x))
data = {"x": x, "y": y, "batch_size": SMALL_BATCH, "shuffle": False}
if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

    options = tf.data.Options()
    options.autotune.enabled = False  # else an epoch of stock Keras, kept to one core, ends late
    data = {"x": tf.data.Dataset.from_tensor_slices((x, y)).batch(SMALL_BATCH).prefetch(2).with_options(options)}


class Clock(keras.callbacks.Callback):
    """Takes wall and processor time of each epoch."""

    def __init__(self):
        super().__init__()
        self.taken = []

    def on_epoch_begin(self, epoch, logs=None):
        self._begin = time.perf_counter(), time.process_time()

    def on_epoch_end(self, epoch, logs=None):
        wall, processor = self._begin
        self.taken.append((time.perf_counter() - wall, time.process_time() - processor))


models = {}
for way in ways:
    models[way] = keras.models.clone_model(model)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    models[way].compile(keras.optimizers.SGD(0.01, momentum=0.9), loss)


def work(way, epochs):
    """Return the seconds of a step, by the clock and of processor time, of each epoch behind the first."""
    clock = Clock()
    models[way].fit(**data, epochs=1 + epochs, verbose=0, callbacks=[*callbacks[way], clock])
    return [seconds / SMALL_STEPS for epoch in clock.taken[1:] for seconds in epoch]


serve(work, rank=rank)
