"""Rounds of a part of the weights, and rounds that go on while workers step: weights are those that NumPy computes."""

import sys
import threading
from pathlib import Path

import keras
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))

from covering import full  # noqa: E402
from folders import new_folder  # noqa: E402
from local_training import BATCH, NESTEROV, SAMPLES, Watched, compare_resumed, fit, parts  # noqa: E402
from models import assert_equal_ranks, classify, different_start, digits  # noqa: E402

import easyscale  # noqa: E402
from easyscale.callbacks import Distribute  # noqa: E402
from easyscale.exchange.ring import Ring  # noqa: E402
from easyscale.update import DiLoCo  # noqa: E402
from easyscale.update.local import fragments_of  # noqa: E402

comm = easyscale.communicator.get()


@full
def check_weights_that_take_turns_are_those_of_the_equations():
    """Two weights in two fragments: a round of one behind each second step, and of both at the end of an epoch.

    In the second fit a fragment has its round there, and none again.
    """
    _compare_turns(DiLoCo(4, fragments=2, outer_optimizer=NESTEROV()))


@full
def check_weights_of_rounds_that_go_on_beside_are_those_of_the_equations():
    """A round ends a step after it has begun, or where the epoch ends; or of all weights, two steps after."""
    _compare_turns(DiLoCo(4, fragments=2, outer_optimizer=NESTEROV(), overlap=1, mixing=0.25))
    _compare_turns(DiLoCo(3, outer_optimizer=NESTEROV(), overlap=2))


def _compare_turns(update):
    rate, apart, overlap = 0.05, update.every // update.fragments, update.overlap
    keras.utils.set_random_seed(1 + comm.rank)
    layers = [keras.layers.Dense(2, use_bias=False), keras.layers.Dense(2, use_bias=False)]
    model = keras.Sequential([keras.Input((3,)), *layers])
    model.compile(keras.optimizers.SGD(rate), "mse")
    last = [
        np.array(value, "float64") for value in comm.all_gather_object([v.tolist() for v in model.get_weights()])[0]
    ]
    fragments = [(0,), (1,)] if update.fragments == 2 else [(0, 1)]
    weights, counts = [[value.copy() for value in last] for _ in SAMPLES], np.zeros((2, len(SAMPLES)))
    velocities, under_way = [np.zeros_like(value) for value in last], []

    def start(numbers):
        for number in numbers:
            found = zip(counts[number], weights, strict=True)
            mean = sum(count * (last[number] - own[number]) for count, own in found) / counts[number].sum()
            counts[number] = 0
            under_way.append((number, mean))

    def finish():
        for number, mean in under_way:
            velocities[number] = 0.9 * velocities[number] - 0.7 * mean
            last[number] = last[number] + 0.9 * velocities[number] - 0.7 * mean
            for own, count in zip(weights, counts[number], strict=True):
                kept = update.mixing if count else 0
                own[number] = kept * own[number] + (1 - kept) * last[number]
        under_way.clear()

    def epoch(steps):
        since, turn = 0, 0
        for step in range(steps):
            for worker, (first, second) in enumerate(weights):
                x, y = (array[step * BATCH : (step + 1) * BATCH].astype("float64") for array in parts()[worker])
                if len(x):
                    error = (x @ first @ second - y) / len(x)
                    weights[worker] = [first - rate * x.T @ error @ second.T, second - rate * (x @ first).T @ error]
                    counts[:, worker] += len(x)
            if step + 1 - since >= overlap:
                finish()
            if step + 1 - since == apart:  # in turns, the first again from each epoch on
                start(fragments[turn % len(fragments)])
                since, turn = step + 1, turn + 1
                if not overlap:
                    finish()
        finish()
        start(number for number in (0, 1) if counts[number].any())
        finish()

    fit(model, update)
    for _ in range(2):
        epoch(7)
    fit(model, update, epochs=1, steps=6)
    epoch(6)
    assert_equal_ranks(model.get_weights())
    for found, expected in zip(model.get_weights(), last, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)


class Holds(Ring):
    """A ring whose sums are held until something is set."""

    name = "holds"
    is_set, held = threading.Event(), 0

    def allreduce(self, buffer):
        if buffer.size > 500:
            Holds.held += 1
            assert self.is_set.wait(60), "no step was made beside the round"
        super().allreduce(buffer)


@full
def check_workers_step_on_while_a_round_goes_on():
    """What a round sends is held until the second step behind its begin has ended; then all see its weights."""

    class Steps(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.held, self.equal = [], []

        def on_train_batch_end(self, batch, logs=None):
            self.held.append(Holds.held)
            if batch == 5:
                Holds.is_set.set()
            if batch == 6:
                self.equal = self.model.get_weights()

    Holds.is_set.clear()
    Holds.held, steps = 0, Steps()
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((32,)), keras.layers.Dense(32)])
    model.compile(keras.optimizers.SGD(0.01), "mse")
    x, y = np.random.default_rng(comm.rank).normal(size=(2, 4 * 7, 32)).astype("float32")
    update = DiLoCo(every=4, overlap=3, mixing=0.0)
    distribute = Distribute(Holds, update=update, check_every=1)
    model.fit(x, y, batch_size=4, shuffle=False, verbose=0, callbacks=[steps, distribute])
    assert steps.held[:3] == [0] * 3 and steps.held[6] == 1, steps.held
    assert_equal_ranks(steps.equal)  # mixing=0.0: each has those of the round when it ends
    assert_equal_ranks(model.get_weights())


def check_what_moves_by_itself_and_callbacks_agree_where_rounds_go_on_beside():
    """Moving statistics, a rate that the chief lowers, forms, several optimizer states: equal on all when all meet."""
    for options in (
        {},
        {"exchange": "ring", "compression": "int8"},
        {"exchange": "shared_memory"},
        {"exchange": "tree"},
    ):
        different_start()
        layers = [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(64)]
        layers += [keras.layers.BatchNormalization(), keras.layers.Dropout(0.5), keras.layers.Dense(10)]
        model, folder = classify(keras.Sequential(layers), keras.optimizers.Adam()), new_folder()
        x, y = easyscale.shard(*digits(comm.size * 4 * 9 + 1))
        callbacks = [
            keras.callbacks.ReduceLROnPlateau("loss", patience=0, min_delta=10.0, cooldown=0),
            Distribute(
                update=DiLoCo(every=6, fragments=3, overlap=1), check_every=2, **{"exchange": "ring", **options}
            ),
        ]
        if not options:
            callbacks[-1] = Distribute("ring", update=DiLoCo(every=6, overlap=2), checkpoint=folder, every=1)
        history = model.fit(x, y, batch_size=4, epochs=2, verbose=0, callbacks=callbacks, validation_data=(x, y))
        assert_equal_ranks([weight for weight in model.get_weights() if weight.dtype == np.float32])
        assert_equal_ranks([np.array(variable) for variable in model.optimizer.variables])
        numbers = [history.history[name] for name in sorted(history.history)]
        assert comm.all_gather_object(numbers) == [numbers] * comm.size


@full
def check_a_round_of_a_fragment_sends_a_part_and_those_who_look_see_what_all_have():
    layers = [keras.layers.Dense(64) for _ in range(4)]
    keras.utils.set_random_seed(1)
    model, folder = keras.Sequential([keras.Input((64,)), *layers]), new_folder()
    model.compile(keras.optimizers.Adam(), "mse")
    first = model.get_weights()
    x, y = np.random.default_rng(comm.rank).normal(size=(2, 4 * 19, 64)).astype("float32")

    class Saves(Watched):
        def on_train_batch_end(self, batch, logs=None):
            super().on_train_batch_end(batch, logs)
            if batch == 5:
                self.model.save_weights(folder / "all.weights.h5")

    watched, update = Saves(), DiLoCo(every=8, fragments=4)
    distribute = Distribute("ring", update=update, check_every=4, checkpoint=folder / "run", every=1)
    model.fit(x, y, batch_size=4, shuffle=False, verbose=0, callbacks=[distribute, watched])
    sent = np.diff([nbytes for _, nbytes in watched.sent])
    fragment = sum(weight.size for weight in watched.weights[0]) / 4 * 4
    compared = 2000  # and what is compared, and agreed upon
    for step, nbytes in enumerate(sent, 1):
        of_round = 2 * fragment * (comm.size - 1) / comm.size if step % 2 else 0
        assert abs(nbytes - of_round) < compared, (step, nbytes, of_round)
    if comm.is_chief:  # between rounds each weight is that of its last one: the last fragment has had none
        found = keras.models.clone_model(model)
        found.load_weights(folder / "all.weights.h5")
        number_of = {id(variable): number for number, variable in enumerate(model.trainable_variables)}
        for number, part in enumerate(fragments_of(model.trainable_variables, 4)):
            seen = first if number == 3 else watched.weights[2 * number + 1]
            for index in (number_of[id(variable)] for variable in part):
                np.testing.assert_array_equal(found.get_weights()[index], seen[index], err_msg=f"{number}, {index}")
    assert_equal_ranks(model.get_weights())
    comm.barrier()  # the chief has written, in the round of all weights
    written = [int(path.name.split("-")[1]) for path in (folder / "run").glob("step-*")]
    assert written == [19], written


@full
def check_training_goes_on_from_the_end_of_an_epoch_where_rounds_go_on_beside():
    update = DiLoCo(every=3, outer_optimizer=NESTEROV(), overlap=2)
    compare_resumed(update, [7, 14], (7, None))
