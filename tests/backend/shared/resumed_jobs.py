"""Jobs that go on from a checkpoint: after SIGTERM, and from one that TensorFlow has written."""

import keras
import numpy as np

import easyscale

__all__ = ["check_a_checkpoint_of_tensorflow", "check_a_restart"]

RESUMING = """
import os, signal, sys
from pathlib import Path
import easyscale, keras, numpy as np
folder, first = Path(sys.argv[1]), Path(sys.argv[1], "has begun")
class EndsOnce(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 2 and self.model.optimizer.iterations > 8 and easyscale.rank() == 1 and not first.exists():
            first.touch()
            os.kill(os.getpid(), signal.SIGTERM)
def train(*callbacks, **options):
    keras.utils.set_random_seed(1)
    x = np.random.default_rng(0).normal(size=(72, 3)).astype("float32")
    x, y = easyscale.shard(x, x.sum(axis=1, keepdims=True))
    layers = keras.layers.Dense(4), keras.layers.Dropout(0.2), keras.layers.Dense(1)
    model = keras.Sequential([keras.Input((3,)), *layers])
    model.compile(keras.optimizers.Adam(0.01), "mse")
    distribute = easyscale.callbacks.Distribute("ring", **options)
    fit = model.fit(x, y, easyscale.local_batch(12), epochs=3, verbose=0, callbacks=[distribute, *callbacks])
    return fit.history, [weight.tolist() for weight in model.get_weights()]
again = train(EndsOnce(), checkpoint=folder)
print("same", again == train(), flush=True)
"""


def check_a_restart(job, folder):
    """Asked to end, a job is started again, and comes to the same weights."""
    (folder / "run").mkdir()
    done = job(RESUMING, "--restarts", "1", arguments=[str(folder / "run")])
    assert done.returncode == 0, done.stderr
    assert (folder / "run" / "has begun").exists() and "easyscale: starts again in 1 s (1 of 1)" in done.stderr
    assert done.stdout.count("same True") == 2 and "False" not in done.stdout


ELSEWHERE = """
import sys
import easyscale, keras, numpy as np
{train}
found = train(2, int(sys.argv[2]), easyscale.callbacks.Distribute("ring", checkpoint=sys.argv[1]))
if easyscale.is_chief():
    np.savez(sys.argv[3], *found)
"""
TRAIN = """
def train(epochs, batch, *callbacks):
    x = np.random.default_rng(0).normal(size=(48, 3)).astype("float32")
    x, y = easyscale.shard(x, x.sum(axis=1, keepdims=True))
    keras.utils.set_random_seed(1)
    layers = keras.layers.Dense(4, activation="tanh"), keras.layers.BatchNormalization(), keras.layers.Dense(1)
    model = keras.Sequential([keras.Input((3,)), *layers])
    model.compile(keras.optimizers.Adam(0.01, global_clipnorm=1.0), "mse")
    model.fit(x, y, batch, epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks)
    return model.get_weights()
"""


def check_a_checkpoint_of_tensorflow(job, folder):
    """A checkpoint that this process, on TensorFlow, has written goes on in the job."""
    names = {"easyscale": easyscale, "keras": keras, "np": np}
    exec(TRAIN, names)
    names["train"](1, 12, easyscale.callbacks.Distribute(checkpoint=folder / "run"))
    arguments = [str(folder / "run"), "12", str(folder / "weights.npz")]
    done = job(ELSEWHERE.format(train=TRAIN), arguments=arguments, size=1)
    assert done.returncode == 0, done.stderr
    with np.load(folder / "weights.npz") as archive:
        for name, expected in zip(archive.files, names["train"](2, 12), strict=True):
            np.testing.assert_allclose(archive[name], expected, rtol=0, atol=1e-5)
