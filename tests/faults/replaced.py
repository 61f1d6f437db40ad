"""A training in which workers are killed, and replaced: `python replaced.py FOLDER UPDATE`. For `test_elastic.py`.

In the second `fit()` rank 2 is killed in its first step, and replaced. Then rank 1 is killed, in the
validation; whoever replaces it fails in the script, every time: by an exception, or by `sys.exit(3)`.
"""

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import easyscale

folder, rank = Path(sys.argv[1]), easyscale.rank()
starts = folder / f"starts-{rank}"
with starts.open("a") as file:
    file.write("x")
is_replacement = starts.stat().st_size > 1
if is_replacement and rank == 1:
    if starts.stat().st_size == 3:
        sys.exit(3)
    raise ArithmeticError("whoever replaces rank 1 fails")

import keras  # noqa: E402
import numpy as np  # noqa: E402


def kill(who, once):
    if rank == who and not is_replacement and not (folder / once).exists():
        (folder / once).touch()
        os.kill(os.getpid(), signal.SIGKILL)


class Faults(keras.callbacks.Callback):
    sizes, end = [], None

    def on_epoch_begin(self, epoch, logs=None):
        self.sizes.append(easyscale.size())
        time.sleep(0.1)

    def on_epoch_end(self, epoch, logs=None):
        failed = folder / "starts-1"
        if self.end is None and failed.stat().st_size == 4:
            self.end = time.monotonic() + 3
        if self.end is not None and time.monotonic() > self.end:
            self.model.stop_training = True

    def on_test_end(self, logs=None):
        if self.sizes[-3:] == [3, 3, 3] and (folder / "first").exists():
            kill(1, "second")


class Layer(keras.layers.Layer):
    """Kills when it is traced, in the first step of the second `fit()`."""

    def call(self, x):
        if getattr(self, "faulty", False):
            kill(2, "first")
        return x


keras.utils.set_random_seed(1)
x = np.random.default_rng(0).normal(size=(240, 6)).astype("float32")
y = x.sum(axis=1, keepdims=True)
layer = Layer()
layers = [keras.Input((6,)), keras.layers.Dense(8), layer, keras.layers.Dropout(0.1), keras.layers.Dense(1)]
model = keras.Sequential(layers)
model.compile(keras.optimizers.Adam(0.01), "mse")
data = dict(zip(("x", "y"), easyscale.shard(x, y), strict=True)) | {"batch_size": easyscale.local_batch(24)}
model.fit(**data, epochs=2, verbose=2, callbacks=[easyscale.callbacks.Distribute(update=sys.argv[2])])

layer.faulty = True
model.compile(keras.optimizers.Adam(0.01), "mse")
best = keras.callbacks.EarlyStopping("loss", patience=10_000, restore_best_weights=True)
slower = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.99)
callbacks = [easyscale.callbacks.Distribute(update=sys.argv[2]), Faults(), best, slower]
history = model.fit(**data, epochs=10_000, verbose=2, callbacks=callbacks, validation_data=(data["x"], data["y"]))
digest = hashlib.sha256(b"".join(array.tobytes() for array in model.get_weights())).hexdigest()
told = {
    "rank": easyscale.communicator.get().membership.initial_ranks[easyscale.rank()],
    "epochs": history.epoch,
    "workers": history.history["workers"],
    "loss": history.history["loss"],
    "rate": float(model.optimizer.learning_rate),
    "best": best.best,
    "weights": digest,
    "rows": len(data["x"]),
}
(folder / f"end-{told['rank']}.json").write_text(json.dumps(told))
