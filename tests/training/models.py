"""Models and data for tests of training, and the comparison with one process."""

import keras
import numpy as np
from sklearn.datasets import load_digits

import easyscale

TOLERANCE = 1e-5


def digits(count=240):
    """The first `count` of the handwritten digits: `(count, 8, 8, 1)` in [0, 1], and labels."""
    x, y = load_digits(return_X_y=True)
    return (x[:count] / 16).astype("float32").reshape(-1, 8, 8, 1), y[:count].astype("int32")


def conv_net(name="model"):
    """A small conv net for the digits, with logits."""
    layers = [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(8, 3, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(16, activation="relu"),
        keras.layers.Dense(10),
    ]
    return keras.Sequential(layers, name=name)


def classify(model, optimizer, **options):
    """Compile for the digits."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], **options)
    return model


def different_start():
    """Seed each rank differently: only the chief starts as the single process does."""
    keras.utils.set_random_seed(1 + easyscale.rank())


def single_start():
    keras.utils.set_random_seed(1)


def assert_equal_ranks(variables):
    """All ranks hold the same bits."""
    bits = np.concatenate([np.ascontiguousarray(v).reshape(-1).view(np.uint8) for v in variables])
    rows = easyscale.communicator.get().all_gather_rows(bits)
    assert (rows == rows[0]).all(), "ranks differ"


def assert_as_one_process(distributed, single, tolerance=TOLERANCE):
    """Compare the weights after `distributed()`, on all ranks, with those after `single()`, run by the chief alone.

    Both return a trained model, or a model and its history, which is then compared as well.
    """
    different_start()
    model, history = _with_history(distributed())
    assert_equal_ranks(model.get_weights())
    if not easyscale.is_chief():
        return
    single_start()
    reference, expected = _with_history(single())
    delta = max(np.abs(a - b).max() for a, b in zip(model.get_weights(), reference.get_weights(), strict=True))
    assert delta <= tolerance, f"weights differ from those of one process by {delta}"
    if expected is not None:
        assert set(history.history) == set(expected.history)
        for key, values in expected.history.items():
            np.testing.assert_allclose(history.history[key], values, rtol=1e-4, atol=1e-5, err_msg=key)


def _with_history(result):
    return result if isinstance(result, tuple) else (result, None)
