"""Trains with Keras 3 on any backend, by itself or with EasyScale. Started by `easyscale launch`."""

import sys
import time

import keras
import numpy as np
from turns import serve
from workloads import CLASSES, WORKLOADS, steps_of

import easyscale
from easyscale.bench.fit import build

workload = WORKLOADS[sys.argv[1]]
generator = np.random.default_rng(easyscale.rank())
x = generator.normal(size=(workload.samples, *workload.shape)).astype("float32")
y = generator.integers(0, CLASSES, workload.samples)
models = {together: build(workload.model, workload.optimizer, workload.shape[0], CLASSES) for together in (False, True)}


def work(together, clock="perf_counter"):
    """Return the seconds of each step, by a clock of the module `time`."""
    ends, now = [], getattr(time, clock)

    def note(batch, logs):
        float(logs["loss"])  # JAX goes on to the next step before this one has ended
        ends.append(now())

    callback = keras.callbacks.LambdaCallback(on_train_batch_end=note)
    distribute = [easyscale.callbacks.Distribute()] if together else []
    models[together].fit(x, y, batch_size=workload.batch, shuffle=False, verbose=0, callbacks=[*distribute, callback])
    return steps_of(ends)


serve(work, rank=easyscale.rank())
