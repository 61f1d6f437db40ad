"""Each part of the state of a training is loaded as it was given, by its name alone."""

import random

import keras
import numpy as np
import pytest

import easyscale
from easyscale.training.callback_state import CallbackStates
from easyscale.training.data_position import DataPosition
from easyscale.training.fit_progress import FitProgress
from easyscale.training.meetings import Meetings
from easyscale.training.parts.decisions import Decisions
from easyscale.training.training_state import TrainingState

X, Y = np.ones((8, 3), "float32"), np.zeros((8, 1), "float32")


class Counts(keras.callbacks.Callback):
    count = 0

    def on_epoch_end(self, epoch, logs=None):
        self.count = epoch + 1


def training(epochs):
    """Return the state of a training of so many epochs."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dropout(0.5)])
    optimizer, counts, position = easyscale.DistributedOptimizer("adam"), Counts(), DataPosition()
    model.compile(optimizer, "mse", metrics=["mae"])
    model.fit(X, Y, epochs=epochs, batch_size=4, verbose=0, callbacks=[counts])
    progress = FitProgress(optimizer.workers)
    decisions = Decisions(model, [optimizer], Meetings([optimizer], progress))
    progress.move_to(epochs)
    progress.settle(2 * epochs)
    decisions.begin(["on_train_batch_end"] * epochs)
    model.stop_training = epochs > 1
    for _ in range(epochs):
        position.end()
    random.seed(epochs)
    return TrainingState(model, [optimizer], progress, decisions, position, CallbackStates([counts, model.history]))


def plain(state):
    return state.about, {name: array.tolist() for name, array in state.arrays.items()}


NAMES = ["weights", "optimizers", "metrics", "random", "seeds", "progress", "decisions"]
NAMES += ["callbacks", "trusted_callbacks", "history"]


@pytest.mark.parametrize("name", NAMES)
def test_a_part_is_loaded_as_it_was_given(name):
    first = training(epochs=2)
    first.reserve()
    given = first.state([name])
    expected = plain(given[name])
    second = training(epochs=1)
    second.reserve()
    assert plain(second.state([name])[name]) != expected
    second.load(given)
    second.reserve()
    found = plain(second.state([name])[name])
    if name == "history":  # of the epochs before those of this worker
        found = ({logs: values[:2] for logs, values in found[0].items()}, {})
    if name in ("weights", "optimizers"):  # names of layers are numbered
        found, expected = found[1], expected[1]
    assert found == expected


def test_random_numbers_that_follow_from_another_workers_are_the_same_on_the_chief():
    first, second = training(epochs=2), training(epochs=1)
    given = first.seeds.state()
    second.seeds.derive(given)
    assert second.seeds.state() == given
