"""A training in which rank 1 traces its first step for 9 s, with a core for a part of it. For `test_faults.py`."""

import time

import keras
import numpy as np

import easyscale


class Slow(keras.layers.Layer):
    calls = 0

    def call(self, x):
        self.calls += 1
        if self.calls == 2 and easyscale.rank() == 1:  # the first call builds the model
            print("traces", flush=True)
            for _ in range(6):
                end = time.monotonic() + 0.1
                while time.monotonic() < end:
                    pass
                time.sleep(1.4)
        return x


x = np.ones((8, 2), "float32")
model = keras.Sequential([keras.Input((2,)), Slow(), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, x[:, :1], batch_size=4, verbose=0, callbacks=[easyscale.callbacks.Distribute("ring")])
