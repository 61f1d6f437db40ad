"""Two real tasks that need no download: to read digits, and to guess the next byte of Python's own standard library."""

import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np
from keras import layers

from easyscale.bench.sequences import Positions

__all__ = ["TASKS", "Task"]

LENGTH, WIDTH, HEADS, BLOCKS = 64, 64, 4, 2  # bytes that the transformer sees, and its size
HELD_OUT = 10  # each tenth module is not trained on


class Task(NamedTuple):
    """A model and its data.

    Attributes:
        build: Function without arguments. Returns a compiled model.
        data: Function. Takes a number of steps and a seed; returns `x` and `y` of as many global batches.
        held_out: Function without arguments. Returns `x` and `y` that are in no batch.
        batch: Int. The samples of a step, over all workers.
        steps: Int. After so many the model is looked at.
    """

    build: Callable[[], keras.Model]
    data: Callable[[int, int], tuple[np.ndarray, np.ndarray]]
    held_out: Callable[[], tuple[np.ndarray, np.ndarray]]
    batch: int
    steps: int


def _digits() -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    return (x[order] / 16).astype("float32"), y[order].astype("int32")


def _digits_to_train(steps: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    x, y = (array[:1400] for array in _digits())
    chosen = np.random.default_rng(seed).integers(0, len(x), steps * TASKS["digits"].batch)
    return x[chosen], y[chosen]


def _digits_held_out() -> tuple[np.ndarray, np.ndarray]:
    x, y = _digits()
    return x[1400:], y[1400:]


def _net() -> keras.Model:
    dense = [layers.Dense(256, activation="relu"), layers.Dense(256, activation="relu"), layers.Dense(10)]
    model = keras.Sequential([keras.Input((64,)), *dense])
    return _compiled(model, keras.optimizers.SGD(0.05, momentum=0.9))


def _bytes_of(held_out: bool) -> np.ndarray:
    """Return the source text of modules of the standard library, one behind the other."""
    modules = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    chosen = [path for number, path in enumerate(modules) if (number % HELD_OUT == 0) == held_out]
    return np.frombuffer(b"".join(path.read_bytes() for path in chosen), np.uint8)


def _windows(text: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    found = text[starts[:, None] + np.arange(LENGTH + 1)].astype("int32")
    return found[:, :-1], found[:, 1:]


def _source_to_train(steps: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    text = _bytes_of(held_out=False)
    starts = np.random.default_rng(seed).integers(0, len(text) - LENGTH, steps * TASKS["source"].batch)
    return _windows(text, starts)


def _source_held_out() -> tuple[np.ndarray, np.ndarray]:
    text = _bytes_of(held_out=True)
    return _windows(text, np.linspace(0, len(text) - LENGTH - 1, 1000).astype(int))


def _transformer() -> keras.Model:
    """The decoder alone (Vaswani et al., 2017), normalized before each part: 0.14 million weights."""
    inputs = keras.Input((LENGTH,), dtype="int32")
    x = Positions()(layers.Embedding(256, WIDTH)(inputs))
    for _ in range(BLOCKS):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(HEADS, WIDTH // HEADS)(y, y, use_causal_mask=True)
        y = layers.Dense(4 * WIDTH, activation="gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(WIDTH)(y)
    model = keras.Model(inputs, layers.Dense(256)(layers.LayerNormalization()(x)))
    return _compiled(model, keras.optimizers.Adam(2e-3))


def _compiled(model: keras.Model, optimizer: keras.optimizers.Optimizer) -> keras.Model:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=False)
    return model


TASKS = {
    "digits": Task(_net, _digits_to_train, _digits_held_out, batch=32, steps=600),
    "source": Task(_transformer, _source_to_train, _source_held_out, batch=16, steps=600),
}
