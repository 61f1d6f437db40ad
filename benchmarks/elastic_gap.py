"""How long the others stand still when one of three workers is killed: from one step to the next.

easyscale launch -n 3 --elastic benchmarks/elastic_gap.py ring replicated
"""

import os
import signal
import sys
import time

import keras
import numpy as np

import easyscale

exchange, update = sys.argv[1:] or ["ring", "replicated"]
LAST, KILLED_AT = 60, 30  # steps
unlucky = easyscale.rank() == 1
ends = []


class Killed(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        ends.append(time.perf_counter())
        if unlucky and batch == KILLED_AT:
            os.kill(os.getpid(), signal.SIGKILL)


generator = np.random.default_rng(0)
x, y = generator.normal(size=(3 * 32 * LAST, 784)).astype("float32"), generator.integers(0, 10, 3 * 32 * LAST)
layers = [keras.layers.Dense(512, activation="relu"), keras.layers.Dense(512, activation="relu")]
model = keras.Sequential([keras.Input((784,)), *layers, keras.layers.Dense(10)])
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
callbacks = [easyscale.callbacks.Distribute(exchange, update=update), Killed()]
model.fit(*easyscale.shard(x, y), batch_size=32, verbose=0, callbacks=callbacks)
if easyscale.is_chief():
    taken = np.diff(ends)
    longest = taken[KILLED_AT - 5 : KILLED_AT + 10].max()
    print(f"{exchange}, {update}: a step takes {np.median(taken):.3f} s, the one with the kill {longest:.2f} s")
