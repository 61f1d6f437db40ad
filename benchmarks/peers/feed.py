"""Trains a small net on images that Python prepares, between processes or in-graph. Started by `easyscale launch`."""

import time

import keras
import numpy as np
from turns import serve
from workloads import CLASSES, SETTLING, steps_of

import easyscale

BATCH, SIDE, STEPS = 64, 64, 6  # of all workers together


class Prepared(keras.utils.PyDataset):
    """Batches that are made by going over the images `passes` times, as augmentations do."""

    def __init__(self, passes):
        super().__init__()
        self._passes = passes
        generator = np.random.default_rng(easyscale.rank())
        self._x = generator.normal(size=(easyscale.local_batch(BATCH), SIDE, SIDE, 3)).astype("float32")
        self._y = generator.integers(0, CLASSES, len(self._x))

    def __len__(self):
        return SETTLING + STEPS

    def __getitem__(self, index):
        x = self._x
        for turn in range(self._passes):
            x = np.roll(x, index + turn, axis=1) * 0.99 + 0.01
        return x, self._y


def build():
    layers = [keras.Input((SIDE, SIDE, 3)), keras.layers.Conv2D(16, 3, 2, activation="relu")]
    layers += [keras.layers.Conv2D(32, 3, 2, activation="relu"), keras.layers.GlobalAveragePooling2D()]
    model = keras.Sequential([*layers, keras.layers.Dense(CLASSES)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


with easyscale.scope():
    model = build()


def work(passes):
    data, ends = Prepared(passes), []
    start = time.perf_counter()
    data[0]
    seconds = time.perf_counter() - start
    clock = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: ends.append(time.perf_counter()))
    model.fit(data, verbose=0, callbacks=[easyscale.callbacks.Distribute(), clock])
    return [seconds, *steps_of(ends)]


serve(work, rank=easyscale.communicator.get().rank)
