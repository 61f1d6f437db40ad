"""Workers that step alone between rounds: weights are those that NumPy computes, and who looks when sees which."""

import functools
import sys
import warnings
from pathlib import Path

import keras
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))

from covering import full  # noqa: E402
from folders import new_folder  # noqa: E402
from local_training import BATCH, NESTEROV, Computed, Watched, compare_resumed, fit, linear, parts  # noqa: E402
from models import assert_equal_ranks, classify, conv, dense, different_start, digits, equal, sgd  # noqa: E402

import easyscale  # noqa: E402
from easyscale.callbacks import Distribute  # noqa: E402
from easyscale.compression import Packing  # noqa: E402
from easyscale.errors import DesyncError  # noqa: E402
from easyscale.update import DiLoCo, Gossip, LocalSGD  # noqa: E402

comm = easyscale.communicator.get()

CASES = {
    "local_sgd": (LocalSGD(every=3), {"every": 3}),
    "post-local, rounds of an epoch": (LocalSGD(every=100, start_step=5), {"every": 100, "start_step": 5}),
    "diloco": (DiLoCo(every=2, outer_optimizer=NESTEROV()), {"every": 2, "outer": (0.7, 0.9, True)}),
    "diloco by default": (DiLoCo(every=4, start_step=9), {"every": 4, "start_step": 9, "outer": (0.7, 0.9, True)}),
}


def check_weights_are_those_of_the_equations_also_in_a_second_fit():
    for title, (update, options) in CASES.items():
        model = linear()
        computed = Computed(comm.all_gather_object(model.get_weights()[0].tolist())[0], **options)
        for epochs in (2, 1):
            fit(model, update, epochs)
            for _ in range(epochs):
                computed.epoch()
            computed.end_fit()
            assert_equal_ranks([*model.get_weights(), *map(np.array, model.optimizer.variables)])
            np.testing.assert_allclose(model.get_weights()[0], computed.last, atol=1e-5, err_msg=title)
            velocity = np.array(model.optimizer.variables[-1])
            np.testing.assert_allclose(velocity, computed.velocities[0], atol=1e-5, err_msg=title)
            assert int(model.optimizer.iterations) == computed.steps


@full
def check_a_round_after_each_step_is_one_process():
    """Also with a last batch in which some have no part, with a loss that is a sum, and with momentum."""
    distribute = {"update": LocalSGD(every=1)}
    plain = functools.partial(keras.optimizers.SGD, 0.1)
    equal(conv(plain), distribute=distribute, exchanges=["shared_memory"], validates=True)
    equal(dense(sgd), digits(96), distribute=distribute, exchanges=["ring"])

    def summed():
        model = dense(functools.partial(keras.optimizers.SGD, 0.001))()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
        model.compile(model.optimizer, loss, metrics=["accuracy"])
        return model

    equal(summed, digits(96), distribute=distribute, exchanges=["tree"])


@full
def check_nothing_is_sent_between_rounds():
    watched, model = Watched(), dense(functools.partial(keras.optimizers.Adam))()
    x, y = easyscale.shard(*digits(comm.size * 4 * 9))
    distribute = Distribute("ring", update=LocalSGD(every=4))
    model.fit(x, y, batch_size=4, shuffle=False, verbose=0, callbacks=[distribute, watched])
    grows = (np.diff(np.array(watched.sent), axis=0) > 0).tolist()
    assert grows == [[step in (3, 7)] * 2 for step in range(1, 9)], grows
    equal_steps = [step for step, weights in enumerate(watched.weights) if _are_equal(weights)]
    assert equal_steps == [3, 7], equal_steps
    assert_equal_ranks(watched.epochs[0])
    a_round = watched.sent[7][1] - watched.sent[6][1]
    weights = 4 * sum(weight.size for weight in watched.epochs[0])
    assert abs(a_round - 2 * weights * (comm.size - 1) / comm.size) < 2000  # what an exchange of gradients sends


def _are_equal(weights):
    rows = comm.all_gather_object([weight.tolist() for weight in weights])
    return all(row == rows[0] for row in rows)


class Looks(keras.callbacks.Callback):
    """Looks at the model in the midst of a round, as a callback may."""

    def __init__(self, folder):
        super().__init__()
        self.file, self.loss, self.predicted = Path(folder, f"{comm.rank}.weights.h5"), None, None

    def on_train_batch_end(self, batch, logs=None):
        if batch == 4 and self.loss is None:
            own = self.model.get_weights()
            x, y = parts()[0]
            self.loss = self.model.evaluate(x, y, verbose=0)
            self.predicted = self.model.predict(x, verbose=0)
            self.model.save_weights(self.file)
            for before, after in zip(own, self.model.get_weights(), strict=True):
                np.testing.assert_array_equal(before, after)


def check_who_looks_between_rounds_sees_the_weights_of_the_last():
    model, looks, watched = linear(), Looks(new_folder()), Watched()
    fit(model, LocalSGD(every=3), epochs=1, callbacks=[looks, watched])
    last, (x, y) = watched.weights[2][0], parts()[0]
    if looks.loss is not None:  # its data have not ended before
        np.testing.assert_allclose(looks.predicted, x @ last, rtol=1e-5, atol=1e-6)
        assert abs(looks.loss - float(np.square(x @ last - y).mean())) < 1e-5
    if comm.is_chief:  # the others write no files
        model.load_weights(looks.file)
        np.testing.assert_array_equal(model.get_weights()[0], last)


@full
def check_a_file_of_an_epoch_has_mean_weights_and_the_mean_of_all_states():
    model, folder = linear(), new_folder()
    computed = Computed(comm.all_gather_object(model.get_weights()[0].tolist())[0], every=3)
    files = keras.callbacks.ModelCheckpoint(Path(folder, "{epoch}.keras"))
    fit(model, LocalSGD(every=3), epochs=2, callbacks=[files])
    for epoch in (1, 2):
        computed.epoch()
        if comm.is_chief:
            saved = keras.models.load_model(Path(folder, f"{epoch}.keras"))
            np.testing.assert_allclose(saved.get_weights()[0], computed.last, atol=1e-5)
            velocity = np.array(saved.optimizer.variables[-1])
            np.testing.assert_allclose(velocity, np.mean(computed.velocities, axis=0), atol=1e-5)
            assert int(saved.optimizer.iterations) == computed.steps


@full
def check_a_worker_that_stops_stops_all_in_the_next_round():
    class Stops(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if comm.rank == 1 and batch == 0:
                self.model.stop_training = True

    watched, model = Watched(), linear()
    fit(model, LocalSGD(every=2), epochs=3, callbacks=[Stops(), watched])
    assert len(watched.sent) == (1 if comm.rank == 1 else 2)
    assert_equal_ranks(model.get_weights())


class Zeros(Packing):
    """A form of which nothing is left."""

    name = "zeros_of_rounds"
    error = 1.0

    def nbytes(self, length):
        return 4

    def pack(self, vector):
        return np.zeros(4, np.uint8)

    def unpack(self, message, vector):
        vector[:] = 0


@full
def check_differences_travel_in_a_form():
    """If nothing arrives of them, weights are those of the last round, and so of the first."""
    model = linear()
    before = comm.all_gather_object(model.get_weights()[0].tolist())[0]
    fit(model, LocalSGD(every=3), compression=Zeros())
    np.testing.assert_array_equal(model.get_weights()[0], np.array(before, "float32"))
    model, computed = linear(), Computed(before, **CASES["diloco"][1])
    fit(model, CASES["diloco"][0], epochs=1, compression="int8")
    computed.epoch()
    assert_equal_ranks(model.get_weights())
    np.testing.assert_allclose(model.get_weights()[0], computed.last, atol=0.02)


@full
def check_layers_that_move_by_themselves_are_averaged_and_draw_apart():
    different_start()
    layers = [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(8), keras.layers.BatchNormalization()]
    layers += [keras.layers.Dropout(0.5), keras.layers.Dense(10)]
    model, watched = classify(keras.Sequential(layers), keras.optimizers.Adam()), Watched()
    x, y = easyscale.shard(*digits(comm.size * 4 * 5))
    callbacks = [Distribute(update=DiLoCo(every=2)), watched]
    history = model.fit(x, y, batch_size=4, epochs=2, verbose=0, callbacks=callbacks, validation_data=(x, y))
    of_all = [weight for weight in watched.weights[1] if weight.dtype == np.float32]
    assert_equal_ranks(of_all)  # a round
    assert_equal_ranks([weight for weight in model.get_weights() if weight.dtype == np.float32])
    numbers = [history.history[name] for name in sorted(history.history)]
    assert comm.all_gather_object(numbers) == [numbers] * comm.size


@full
def check_loss_scaling_is_each_workers_own():
    model = linear(keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01)))
    fit(model, LocalSGD(every=3))
    assert_equal_ranks([*model.get_weights(), *map(np.array, model.optimizer.variables)])


@full
def check_workers_with_the_same_data_are_told_so_in_the_first_round():
    """Within an epoch, or at its end."""
    for update in (LocalSGD(every=3), LocalSGD(every=10**6), Gossip()):
        model, (x, y) = linear(), parts()[0]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            options = {"batch_size": BATCH, "epochs": 2, "shuffle": False, "verbose": 0}
            model.fit(x, y, **options, callbacks=[Distribute("ring", update=update)])
        found = [str(warning.message) for warning in caught if "the same first batch" in str(warning.message)]
        assert len(found) == int(comm.is_chief), (update, found)


@full
def check_a_step_past_the_optimizer_is_an_error():
    class Past(keras.Model):
        def __init__(self):
            super().__init__()
            self.layer = keras.layers.Dense(2)

        def call(self, x):
            return self.layer(x)

        def train_step(self, data):
            for weight in self.trainable_variables:
                weight.assign(weight * 0.9)
            return {"loss": keras.ops.sum(self(data[0]))}

    model = Past()
    model.build((None, 3))
    model.compile("sgd", "mse")
    try:
        fit(model, LocalSGD(every=3))
    except DesyncError as error:
        assert "a step must exchange its gradients" in str(error)
    else:
        raise AssertionError("it was taken")


@full
def check_training_goes_on_from_a_checkpoint_with_the_same_bits():
    """One that is due is written in the next round: it has each worker's own optimizer, and the outer one."""
    update = DiLoCo(every=3, start_step=2, outer_optimizer=NESTEROV())
    compare_resumed(update, [1, 2, 5, 7, 10, 13, 14], (10, 1, None))  # together, and in rounds, also of an epoch's end


@full
def check_workers_that_have_memory_in_common_step_alone_in_their_own():
    """So many weights that XLA compiles their update; then one worker changes its own."""
    x, y = easyscale.shard(*digits(comm.size * 4 * 7))

    def trained(exchange):
        keras.utils.set_random_seed(2)
        layers = [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(2100), keras.layers.Dense(10)]
        model = classify(keras.Sequential(layers), keras.optimizers.SGD(0.01, momentum=0.9))
        distribute = Distribute(exchange, update=DiLoCo(every=3))
        model.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0, callbacks=[distribute])
        return model

    model, expected = (trained(exchange) for exchange in ("shared_memory", "ring"))
    assert_equal_ranks(model.get_weights())
    for found, value in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(found, value, atol=1e-5)
    before = model.get_weights()
    if comm.is_chief:
        for weight in model.trainable_variables:
            weight.assign_add(keras.ops.ones(weight.shape))
    comm.barrier()
    for after, value in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(after, value + comm.is_chief)
