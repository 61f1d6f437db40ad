"""A `fit()` goes on from a checkpoint as if it had not ended: weights, optimizer, random numbers, data.

No check knows a backend; what only some have, those import this for.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "training"))

import keras  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
from checkpoints_on_ranks import (  # noqa: E402
    check_samples_that_were_trained_on_are_passed_over_in_smaller_batches,
    check_training_goes_on_in_a_step_for_which_only_the_chief_has_data,
    leave,
)
from folders import new_folder  # noqa: E402

import easyscale  # noqa: E402
from easyscale.callbacks import Distribute  # noqa: E402
from easyscale.checkpoint.folder import Checkpoints  # noqa: E402

comm = easyscale.communicator.get()

__all__ = [
    "check_samples_that_were_trained_on_are_passed_over_in_smaller_batches",
    "check_training_goes_on_in_a_step_for_which_only_the_chief_has_data",
    "goes_on",
    "train",
]

BATCH = 4
EPOCHS = 3
made = []  # the batches of steps that were made, and not skipped


class Batches(keras.callbacks.Callback):
    """Notes which batches callbacks hear of; a checkpoint has the list."""

    def on_train_begin(self, logs=None):
        self.heard = []

    def on_train_batch_end(self, batch, logs=None):
        self.heard.append(batch)
        made.append(batch)


def random_numbers():
    """Numbers that NumPy draws, and the backend if it draws some by a generator of its own."""
    if keras.backend.backend() != "torch":
        return np.random.rand(2).tolist()
    import torch

    return [*np.random.rand(2).tolist(), *torch.rand(2).tolist()]


def train(folder, data_of, **options):
    """Train on 32 samples on each rank, and one more on the chief; return what is to come again."""
    keras.utils.set_random_seed(1)
    generator = np.random.default_rng(0)
    x = generator.normal(size=(32 * comm.size + 1, 6)).astype("float32")
    x, y = easyscale.shard(x, x.sum(axis=1, keepdims=True))
    dropouts = keras.layers.Dropout(0.2), keras.layers.Dropout(0.2, seed=3)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8), *dropouts, keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    seen = Batches()
    callbacks = [Distribute("ring", checkpoint=folder, every=1, keep=99), seen]
    fit = model.fit(**data_of(x, y), **options, epochs=EPOCHS, verbose=0, callbacks=callbacks)
    heard = comm.all_gather_object(seen.heard)[0]  # the chief's callbacks go on on all ranks
    return fit.history, heard, int(model.optimizer.iterations), random_numbers(), model.get_weights()


def goes_on(data_of, at, **options):
    folder = new_folder()
    *expected, weights = train(folder, data_of, **options)
    leave(folder, at)
    assert len(list(folder.glob("step-*"))) == 1
    made.clear()
    *found, again = train(folder, data_of, **options)
    assert found == expected
    assert not easyscale.is_chief() or len(made) == len(expected[1]) - at  # who has a batch more than others
    for own, other in zip(again, weights, strict=True):
        np.testing.assert_array_equal(own, other)


def _arrays(x, y):
    return {"x": x, "y": y, "batch_size": BATCH}


def check_shuffled_arrays_have_the_order_that_they_had():
    for at in (4, 9, 14):  # the first epoch, before the second, and inside of it
        goes_on(_arrays, at)


def check_arrays_that_are_shuffled_within_batches():
    goes_on(_arrays, 14, shuffle="batch")


def check_data_that_go_on_in_the_next_epoch():
    goes_on(_arrays, 7, steps_per_epoch=5)


def check_a_longer_fit_goes_on_with_the_order_of_one_that_was_not_interrupted():
    global EPOCHS
    folder, expected = new_folder(), train(new_folder(), _arrays)
    try:
        EPOCHS = 2
        train(folder, _arrays)
    finally:
        EPOCHS = 3
    found = train(folder, _arrays)
    assert found[:4] == expected[:4]


def check_a_position_that_is_none_is_refused_in_one_line():
    folder = new_folder()
    train(folder, _arrays)
    leave(folder, 14)
    for name, order in (("of another length", [1, 2]), ("no bytes", ["a"])):
        if easyscale.is_chief():
            checkpoint, wrong = Checkpoints(folder).read()
            assert not wrong, name
            for position in checkpoint.about["data"]:
                position["order"] = {keras.backend.backend(): order}
            Checkpoints(folder, keep=1).write(15, checkpoint)
        comm.barrier()
        with pytest.raises(easyscale.EasyScaleError, match="cannot have the order that they had .*Use another folder"):
            train(folder, _arrays)
        comm.barrier()
