"""What a `fit()` on several processes does with the checkpoints of another."""

import keras
import numpy as np
from covering import full
from folders import new_folder

import easyscale
from easyscale.callbacks import Distribute

comm = easyscale.communicator.get()


def _train(folder, batch_size=4, is_built=True, update=None):
    """Train on 8 samples on each rank, and one more on the chief: two steps of 4, and one that only the chief has."""
    generator = np.random.default_rng(0)
    x, y = easyscale.shard(generator.normal(size=(8 * comm.size + 1, 6)), generator.normal(size=(8 * comm.size + 1, 1)))
    keras.utils.set_random_seed(1)
    inputs = [keras.Input((6,))] * is_built
    model = keras.Sequential([*inputs, keras.layers.Dense(3), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.1), "mse")
    options = {"batch_size": batch_size, "epochs": 2, "shuffle": False, "verbose": 0}
    distribute = Distribute("ring", update=update, checkpoint=folder, every=1, keep=10)
    history = model.fit(x, y, callbacks=[distribute], **options).history
    return history, int(model.optimizer.iterations), model.get_weights()


def leave(folder, step):
    """Take all checkpoints away but that of one step."""
    if easyscale.is_chief():
        for path in [path for path in folder.glob("step-*") if not path.name.startswith(f"step-{step:09d}-")]:
            path.unlink()
    comm.barrier()


@full
def check_training_goes_on_in_a_step_for_which_only_the_chief_has_data():
    folder = new_folder()
    history, steps, weights = _train(folder)
    assert steps == 6
    leave(folder, step=2)
    again = _train(folder)
    assert again[:2] == (history, steps)
    for mine, theirs in zip(again[2], weights, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@full
def check_a_worker_without_data_left_knows_the_step_of_a_model_that_was_not_built():
    """Nor was its update divided when the step was traced first."""
    folder = new_folder()
    expected = _train(folder, is_built=False, update="sharded")
    leave(folder, step=2)
    again = _train(folder, is_built=False, update="sharded")
    assert again[:2] == expected[:2]
    for mine, theirs in zip(again[2], expected[2], strict=True):
        np.testing.assert_array_equal(mine, theirs)


def check_samples_that_were_trained_on_are_passed_over_in_smaller_batches():
    folder = new_folder()
    _train(folder)
    leave(folder, step=2)
    assert _train(folder, batch_size=2)[1] == 2 + 1 + 5
