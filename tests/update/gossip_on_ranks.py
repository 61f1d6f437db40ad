"""Workers that mix their weights in pairs: weights are those that NumPy computes, and nobody meets all others."""

import sys
from pathlib import Path

import keras
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))

from covering import full  # noqa: E402
from local_training import BATCH, SAMPLES, Computed, Watched, compare_resumed, fit, linear  # noqa: E402
from models import assert_equal_ranks, classify, different_start, digits  # noqa: E402

import easyscale  # noqa: E402
from easyscale.callbacks import Distribute  # noqa: E402
from easyscale.errors import DesyncError  # noqa: E402
from easyscale.update import Gossip  # noqa: E402
from easyscale.update.pairs import Pairs  # noqa: E402

comm = easyscale.communicator.get()
TURNS = {2: 1, 3: 2, 4: 2}[comm.size]


class Mixed(Computed):
    """The same training in float64, all workers in one process."""

    def epoch(self):
        steps = [-(-samples // BATCH) for samples in SAMPLES]
        done, number, heard = [0] * comm.size, 0, [set() for _ in SAMPLES]
        while not all(len(of) == comm.size for of in heard):
            turn = number % TURNS
            for worker in range(comm.size):
                taken = min(self.every, steps[worker] - done[worker])
                for step in range(done[worker], done[worker] + taken):
                    self.move(worker, self.gradient(worker, step)[1])
                done[worker] += taken
                if turn == 0:  # of whom it has heard that their data had ended then
                    heard[worker] = set()
                if taken < self.every:
                    heard[worker].add(worker)
                else:
                    heard[worker] = set()
            others = [(worker - 2**turn) % comm.size for worker in range(comm.size)]
            self.weights = [(self.weights[own] + self.weights[other]) / 2 for own, other in enumerate(others)]
            heard = [of | heard[other] if of else of for of, other in zip(heard, others, strict=True)]
            number += 1
        self.rounds.append(number)
        self.steps += max(steps)
        self.last = np.mean(self.weights, axis=0)
        self.weights = [self.last.copy() for _ in SAMPLES]


@full
def check_weights_are_those_of_the_equations_also_in_a_second_fit():
    for every in (1, 2, 5):
        model, watched = linear(), Watched()
        computed = Mixed(comm.all_gather_object(model.get_weights()[0].tolist())[0], every)
        for epochs in (2, 1):
            fit(model, Gossip(every), epochs, callbacks=[watched])
            for _ in range(epochs):
                computed.epoch()
            computed.end_fit()
            assert_equal_ranks([*model.get_weights(), *map(np.array, model.optimizer.variables)])
            np.testing.assert_allclose(model.get_weights()[0], computed.last, atol=1e-5, err_msg=f"every={every}")
            assert int(model.optimizer.iterations) == computed.steps


@full
def check_a_worker_hears_one_other_and_meets_nobody_until_an_epoch_ends():
    watched, model = Watched(), linear(keras.optimizers.SGD(0.05))
    fit(model, Gossip(), epochs=2, callbacks=[watched], steps=3)
    sent = np.array(watched.sent).reshape(2, 3, 2)
    weights = 4 * 16  # six numbers, in a vector of whole cache lines
    assert np.diff(sent, axis=1).tolist() == [[[2, 16 + weights]] * 2] * 2, sent
    own = [weights[0].tolist() for weights in watched.weights]
    for step in (0, 1, 2):
        of_ranks = {str(weights[step]) for weights in comm.all_gather_object(own)}
        assert (len(of_ranks) == 1) == (comm.size == 2), (step, of_ranks)
    for weights in watched.epochs:
        assert_equal_ranks(weights)


def check_training_goes_on_from_a_checkpoint_of_an_epochs_end_with_the_same_bits():
    compare_resumed(Gossip(), [7, 14], (7, None))


@full
def check_moving_statistics_and_several_types_of_weights():
    different_start()
    layers = [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(8, dtype="float64")]
    layers += [keras.layers.BatchNormalization(), keras.layers.Dropout(0.5), keras.layers.Dense(10)]
    model = classify(keras.Sequential(layers), keras.optimizers.Adam())
    x, y = easyscale.shard(*digits(comm.size * 4 * 5 - 3))
    callbacks = [Distribute("shared_memory", update="gossip")]
    history = model.fit(x, y, batch_size=4, epochs=2, verbose=0, callbacks=callbacks, validation_data=(x, y))
    assert_equal_ranks([weight for weight in model.get_weights() if weight.dtype.kind == "f"])
    numbers = [history.history[name] for name in sorted(history.history)]
    assert comm.all_gather_object(numbers) == [numbers] * comm.size


@full
def check_a_worker_that_stops_stops_all_at_the_end_of_the_epoch():
    class Stops(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if comm.rank == 1 and batch == 0:
                self.model.stop_training = True

    watched, model = Watched(), linear()
    fit(model, Gossip(), epochs=3, callbacks=[Stops(), watched], steps=3)
    assert len(watched.sent) == (1 if comm.rank == 1 else 3)
    assert_equal_ranks(model.get_weights())


def check_a_worker_in_another_round_is_told_of():
    pairs = Pairs(comm, [keras.Variable(np.zeros(3, "float32"))])
    for _ in range(TURNS):
        assert not pairs.mix(has_data=True)
    if comm.rank == 1:  # as in another epoch, or `fit()`
        pairs = Pairs(comm, [keras.Variable(np.zeros(3, "float32"))])
    try:
        pairs.mix(has_data=True)
    except DesyncError as error:
        assert f"Received: round {0 if comm.rank == 1 else TURNS} on rank {comm.rank}, and round " in str(error)
        assert comm.rank in (1, 2 % comm.size)
    else:
        assert comm.rank not in (1, 2 % comm.size)


@full
def check_a_form_is_refused():
    try:
        fit(linear(), Gossip(), compression="int8")
    except ValueError as error:
        assert "travel as they are. Received: update='gossip' and `compression`. Leave one of them out" in str(error)
    else:
        raise AssertionError("it was taken")
