"""Trains by a pipeline of two stages; the first time the last rank dies in the midst of the second epoch.

Arguments: a folder; `pipeline`, or `scope` if the model is built in one.
"""

import contextlib
import os
import signal
import sys
from pathlib import Path

import keras
import numpy as np
from graphs import dense_net

import easyscale

folder = Path(sys.argv[1])
generator = np.random.default_rng(0)
x, y = generator.normal(size=(72, 12)).astype("float32"), generator.integers(0, 10, 72)


class Dies(keras.callbacks.Callback):
    """Kills the last rank in one step, once."""

    def on_train_batch_begin(self, batch, logs=None):
        died = folder / "died"
        is_time = self.model.optimizer.iterations == 4 and easyscale.communicator.get().rank == 1
        if is_time and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)


keras.utils.set_random_seed(1)
pipeline = easyscale.parallel.Pipeline(stages=2, microbatches=4, cut="weights") if len(sys.argv) > 2 else None
distribute = easyscale.callbacks.Distribute(
    "ring",
    model_parallel=pipeline,
    checkpoint=folder / "checkpoints" if pipeline else None,
    every=1 if pipeline else None,
)
with pipeline.scope() if "scope" in sys.argv else contextlib.nullcontext():
    model = dense_net()
model.compile(keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
callbacks = [distribute, Dies()] if pipeline else []
history = model.fit(x, y, batch_size=24, epochs=3, shuffle=False, verbose=0, callbacks=callbacks)
if easyscale.is_chief() or "scope" in sys.argv:  # where no rank has all weights, and all ranks write
    model.save_weights(folder / "all.weights.h5")
if easyscale.is_chief():
    whole = dense_net()
    whole.load_weights(folder / "all.weights.h5")
    np.savez(folder / "weights.npz", *whole.get_weights(), loss=history.history["loss"])
