"""Scripts that `easyscale verify` compares with one process."""

import re

from launches import environment, run
from other_backends import LIMIT

__all__ = ["check_a_script_that_does_not_divide_its_batch", "check_a_script_that_is_equal"]

SCRIPT = """
import keras, numpy as np
from easyscale import callbacks, local_batch, shard

x = np.random.default_rng(0).normal(size=(65, 8))  # ranks have 33 and 32 samples
xs, ys = shard(x, x.sum(axis=1, keepdims=True))
batch = {batch}
ways = [{{"x": xs, "y": ys, "batch_size": batch}}]
{ways}
for given in ways:
    layers = [keras.layers.Dense(8, "tanh"), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((8,)), *layers])
    model.compile(keras.optimizers.Adam(1e-2), "mse", metrics=["mae", keras.metrics.AUC()])
    model.fit(**given, epochs=9, callbacks=[callbacks.Distribute("ring", bucket_bytes=256)])
"""


def _verified(other, folder, batch, ways=""):
    """Return the exit code, what the command has said, what went wrong, and the path of the script."""
    path = folder / "train.py"
    path.write_text(SCRIPT.format(batch=batch, ways=ways))
    done = run([*other.easyscale, "verify", "-n", "2", str(path)], 2 * LIMIT, environment())
    return done.returncode, done.stdout.rstrip(), done.stderr, re.escape(str(path))


def check_a_script_that_is_equal(other, folder, ways, fits):
    """All steps, metrics included, are those of one process, in so many `fit()`s: data in order, no dropout."""
    code, told, errors, path = _verified(other, folder, "local_batch(16)", ways)
    assert code == 0, told + errors
    words = (
        f"{5 * fits} steps of {fits} optimizers in {fits} fits, {4 * fits} weights of {81 * fits} elements in float64"
    )
    lines = [
        f"equal: 2 processes take the steps of one in {path}",
        rf"  {words}: max difference \S+ \(tolerance 1e-08\)",
        r"  metrics loss, mae, auc(_\d)?: (max difference \S+|no difference) \(tolerance 1e-08\)",
    ]
    *first, last = told.splitlines()
    assert re.fullmatch("\n".join(lines), "\n".join(first)), told
    assert _switched_off(last) == ["dropout", "dropout_1", "shuffling"]


def check_a_script_that_does_not_divide_its_batch(other, folder):
    """Two processes train on twice as many samples in a step, and are told so."""
    code, told, errors, path = _verified(other, folder, "16")
    assert code == 1, told + errors
    lines = [
        f"different: 2 processes do not take the steps of one in {path}",
        "  first difference: step 1, `sequential/dense/kernel` by .*",
        "  hint: in step 1 one process trains on 16 samples, 2 processes on 32.*",
    ]
    *first, last = told.splitlines()
    assert re.fullmatch("\n".join(lines), "\n".join(first)), told
    assert _switched_off(last) == ["dropout", "shuffling"]


def _switched_off(line):
    """What is named, in whatever order: on JAX a layer is called before a `fit()` is begun."""
    return sorted(line.removeprefix("  switched off for the comparison: ").split(", "))
