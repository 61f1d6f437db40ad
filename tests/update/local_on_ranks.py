"""Workers that step alone between rounds: weights are those that NumPy computes, and who looks when sees which."""

import functools
import sys
import threading
import warnings
from pathlib import Path

import keras
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))

from checkpoints_on_ranks import leave  # noqa: E402
from models import assert_equal_ranks, classify, conv, dense, different_start, digits, equal, sgd  # noqa: E402
from one_process import new_folder  # noqa: E402

import easyscale  # noqa: E402
from easyscale.callbacks import Distribute  # noqa: E402
from easyscale.compression import Packing  # noqa: E402
from easyscale.errors import DesyncError  # noqa: E402
from easyscale.exchange.ring import Ring  # noqa: E402
from easyscale.update import DiLoCo, LocalSGD  # noqa: E402
from easyscale.update.local import fragments_of  # noqa: E402

comm = easyscale.communicator.get()

BATCH, RATE, MOMENTUM = 4, 0.05, 0.8
SAMPLES = [4 * 7, 4 * 7 - 1, 4 * 3 + 1, 4 * 7][: comm.size]  # of each worker: one runs out of data before the others


def parts():
    """Each worker's inputs and targets: a linear function of three numbers, and noise."""
    generator = np.random.default_rng(3)
    x = generator.normal(size=(sum(SAMPLES), 3)).astype("float32")
    y = (x @ generator.normal(size=(3, 2)) + generator.normal(size=(sum(SAMPLES), 2))).astype("float32")
    ends = np.cumsum([0, *SAMPLES])
    return [(x[start:end], y[start:end]) for start, end in zip(ends, ends[1:], strict=False)]


def linear(optimizer=None):
    keras.utils.set_random_seed(1 + comm.rank)  # only the chief's weights are those of the computation
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, use_bias=False)])
    model.compile(optimizer or keras.optimizers.SGD(RATE, momentum=MOMENTUM), "mse")
    return model


def fit(model, update, epochs=2, callbacks=(), exchange="ring", steps=None, **options):
    distribute = Distribute(exchange, update=update, **options)
    x, y = (array[: None if steps is None else steps * BATCH] for array in parts()[comm.rank])
    common = {"batch_size": BATCH, "epochs": epochs, "shuffle": False, "verbose": 0}
    return model.fit(x, y, callbacks=[distribute, *callbacks], **common)


class Computed:
    """The same training in float64, by the equations of the papers, all workers in one process."""

    def __init__(self, weights, every, start_step=0, outer=(1.0, 0.0, False)):
        self.every, self.start_step, self.outer = every, start_step, outer
        self.last = np.array(weights, "float64")
        self.weights = [self.last.copy() for _ in SAMPLES]
        self.velocities = [np.zeros_like(self.last) for _ in SAMPLES]
        self.outer_velocity = np.zeros_like(self.last)
        self.samples, self.steps, self.rounds = np.zeros(len(SAMPLES)), 0, []

    def gradient(self, worker, step):
        x, y = (array[step * BATCH : (step + 1) * BATCH].astype("float64") for array in parts()[worker])
        return len(x), x.T @ (x @ self.weights[worker] - y) / max(len(x), 1)  # of the mean over both outputs

    def move(self, worker, gradient):
        self.velocities[worker] = MOMENTUM * self.velocities[worker] - RATE * gradient
        self.weights[worker] = self.weights[worker] + self.velocities[worker]

    def round(self):
        rate, momentum, nesterov = self.outer
        differences = [count * (self.last - own) for count, own in zip(self.samples, self.weights, strict=True)]
        mean = sum(differences) / self.samples.sum()
        self.outer_velocity = momentum * self.outer_velocity - rate * mean
        step = momentum * self.outer_velocity - rate * mean if nesterov else self.outer_velocity
        self.last = self.last + step
        self.weights = [self.last.copy() for _ in SAMPLES]
        self.samples[:] = 0
        self.rounds.append(self.steps)

    def epoch(self):
        since = self.steps
        for step in range(-(-max(SAMPLES) // BATCH)):
            found = [self.gradient(worker, step) for worker in range(len(SAMPLES))]
            if self.steps < self.start_step:
                mean = sum(count * gradient for count, gradient in found) / sum(count for count, _ in found)
                for worker in range(len(SAMPLES)):
                    self.move(worker, mean)
                self.last, since = self.weights[0], self.steps + 1
            else:
                for worker, (count, gradient) in enumerate(found):
                    if count:
                        self.move(worker, gradient)
                        self.samples[worker] += count
            self.steps += 1
            if self.steps - since >= self.every:
                self.round()
                since = self.steps
        if self.samples.any():
            self.round()

    def end_fit(self):
        self.velocities = [np.mean(self.velocities, axis=0) for _ in SAMPLES]


NESTEROV = functools.partial(keras.optimizers.SGD, 0.7, momentum=0.9, nesterov=True)
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


def check_weights_that_take_turns_are_those_of_the_equations():
    """Two weights in two fragments: a round of one behind each second step, and of both at the end of an epoch.

    In the second fit a fragment has its round there, and none again.
    """
    _compare_turns(DiLoCo(4, fragments=2, outer_optimizer=NESTEROV()))


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


class Watched(keras.callbacks.Callback):
    """What this worker has sent, and its weights, at the end of each step and of each epoch."""

    def __init__(self):
        super().__init__()
        self.sent, self.weights, self.epochs = [], [], []

    def on_train_batch_end(self, batch, logs=None):
        self.sent.append((comm.sent.messages, comm.sent.bytes))
        self.weights.append(self.model.get_weights())

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append(self.model.get_weights())


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


def check_loss_scaling_is_each_workers_own():
    model = linear(keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01)))
    fit(model, LocalSGD(every=3))
    assert_equal_ranks([*model.get_weights(), *map(np.array, model.optimizer.variables)])


def check_workers_with_the_same_data_are_told_so_in_the_first_round():
    model, (x, y) = linear(), parts()[0]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        distribute = Distribute("ring", update=LocalSGD(every=3))
        model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0, callbacks=[distribute])
    found = [str(warning.message) for warning in caught if "the same first batch" in str(warning.message)]
    assert len(found) == int(comm.is_chief), found


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


def check_training_goes_on_from_a_checkpoint_with_the_same_bits():
    """One that is due is written in the next round: it has each worker's own optimizer, and the outer one."""
    update = DiLoCo(every=3, start_step=2, outer_optimizer=NESTEROV())
    _compare_resumed(update, [1, 2, 5, 7, 10, 13, 14], (10, 1, None))  # together, and in rounds, also of an epoch's end


def check_training_goes_on_from_the_end_of_an_epoch_where_rounds_go_on_beside():
    update = DiLoCo(every=3, outer_optimizer=NESTEROV(), overlap=2)
    _compare_resumed(update, [7, 14], (7, None))


def _compare_resumed(update, expected_steps, resumed_from):
    folder = new_folder()

    def trained():
        model = linear(keras.optimizers.Adam(0.05))
        history = fit(model, update, checkpoint=folder, every=1, keep=20).history
        return [*model.get_weights(), *map(np.array, model.optimizer.variables)], history

    weights, history = trained()
    comm.barrier()  # the chief has written
    written = sorted(int(path.name.split("-")[1]) for path in folder.glob("step-*"))
    comm.barrier()  # before some are taken away
    assert written == expected_steps, written
    for step in resumed_from:  # and from the end: no step is left
        if step is not None:
            leave(folder, step)
        again, same_history = trained()
        assert same_history == {name: values[-len(same_history[name]) :] for name, values in history.items()}
        for found, expected in zip(again, weights, strict=True):
            np.testing.assert_array_equal(found, expected, err_msg=f"from step {step}")


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
