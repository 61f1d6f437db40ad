"""Checks with parameter servers that wait for no worker, or for some: inside an epoch each worker is on its own."""

import time
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from folders import done_with, new_folder
from models import assert_equal_ranks, classify, conv_net, digits

import easyscale
from easyscale.exchange import ParameterServer

comm = easyscale.communicator.get()
RANK, SIZE = easyscale.rank(), easyscale.size()
BATCH, STEPS = 8, 6
DATA = digits(BATCH * STEPS * SIZE)


class Slow(keras.callbacks.Callback):
    """One worker is slower than the others."""

    def on_train_batch_begin(self, batch, logs=None):
        time.sleep(0.03 if RANK == SIZE - 1 else 0.003)


def fit(exchange, model=None, callbacks=(), data=DATA, checkpoint=None, **options):
    keras.utils.set_random_seed(1)
    model = model or classify(conv_net(), keras.optimizers.SGD(0.02))
    every = None if checkpoint is None else 1
    callbacks = [easyscale.callbacks.Distribute(exchange, checkpoint=checkpoint, every=every), *callbacks]
    options = {"batch_size": BATCH, "epochs": 2, "verbose": 0, "shuffle": False, **options}
    history = model.fit(*easyscale.shard(*data), callbacks=callbacks, **options)
    everyones = comm.all_gather_object({name: list(map(str, values)) for name, values in history.history.items()})
    assert all(theirs == everyones[0] for theirs in everyones), "histories differ"
    assert_equal_ranks([*model.get_weights(), *map(np.array, model.optimizer.variables)])
    return model, history.history


def applied(history):
    return [round(sum(counts.values())) for counts in history["staleness_histogram"]]


def check_every_gradient_is_applied_and_its_staleness_is_counted():
    model, history = fit("parameter_server:async", callbacks=[Slow()], validation_data=easyscale.shard(*DATA))
    assert applied(history) == [SIZE * STEPS] * 2
    assert int(model.optimizer.iterations) == 2 * SIZE * STEPS
    assert set(history) == {
        *("loss", "accuracy", "val_loss", "val_accuracy", "staleness", "staleness_max", "staleness_histogram")
    }
    for mean, largest, counts in zip(
        history["staleness"], history["staleness_max"], history["staleness_histogram"], strict=True
    ):
        assert largest == max(counts)
        assert mean == pytest.approx(sum(steps * count for steps, count in counts.items()) / sum(counts.values()))
    loss, _ = model.evaluate(*DATA, verbose=0)
    np.testing.assert_allclose(history["val_loss"][-1], loss, rtol=1e-4)  # with the servers' weights of that moment


def check_nobody_is_further_ahead_than_the_bound():
    _, history = fit(ParameterServer("bounded", staleness=2), callbacks=[Slow()])
    assert applied(history) == [SIZE * STEPS] * 2
    assert max(history["staleness_max"]) <= 2


def check_a_step_does_without_the_late():
    model, history = fit(ParameterServer(backup_workers=1), callbacks=[Slow()])
    assert int(model.optimizer.iterations) == 2 * STEPS  # all workers make steps together
    assert all(taken >= (SIZE - 1) * STEPS for taken in applied(history))
    assert max(history["staleness_max"]) == 0


def check_gradients_and_weights_travel_less_often():
    exchange = ParameterServer("async", push_every=2, pull_every=3, delay_compensation=0.1)
    _, history = fit(exchange)
    assert applied(history) == [SIZE * STEPS // 2] * 2


def check_the_chiefs_learning_rate_reaches_the_servers():
    weights = []

    class Rate(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if RANK == 0:
                self.model.optimizer.learning_rate = 0.0 if epoch else 0.1

        def on_epoch_end(self, epoch, logs=None):
            weights.append(np.concatenate([one.reshape(-1) for one in self.model.get_weights()]))

    model, _ = fit("parameter_server:async", callbacks=[Rate()])
    np.testing.assert_array_equal(weights[0], weights[1])
    assert float(model.optimizer.learning_rate) == 0


def check_that_one_worker_stops_stops_all():
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if RANK == SIZE - 1 and batch == 2:
                self.model.stop_training = True

    begin = time.time()
    _, history = fit("parameter_server:async", callbacks=[Slow(), Stop()], epochs=1000)
    assert len(history["loss"]) == 1
    assert time.time() - begin < 60


def check_epochs_of_different_lengths():
    x, y = DATA
    mine = slice(0, BATCH * (1 + RANK % SIZE))
    for mode in ("async", "bounded"):
        keras.utils.set_random_seed(1)
        model = classify(conv_net(), keras.optimizers.SGD(0.02))
        callbacks = [easyscale.callbacks.Distribute(f"parameter_server:{mode}")]
        history = model.fit(x[mine], y[mine], batch_size=BATCH, epochs=2, verbose=0, callbacks=callbacks).history
        assert applied(history) == [SIZE * (SIZE + 1) // 2] * 2


def check_a_saved_model_goes_on_in_stock_keras():
    folder = new_folder()
    saving = keras.callbacks.ModelCheckpoint(folder / "model.keras")
    model, _ = fit("parameter_server:async", classify(conv_net(), keras.optimizers.Adam(1e-3)), [saving])
    saved = keras.models.load_model(folder / "model.keras")
    for ours, theirs in zip(model.get_weights(), saved.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert int(saved.optimizer.iterations) == int(model.optimizer.iterations) == 2 * SIZE * STEPS
    pairs = list(zip(model.optimizer.variables, saved.optimizer.variables, strict=True))
    for ours, theirs in pairs:
        np.testing.assert_array_equal(ours, theirs)
    assert any(np.abs(theirs).max() > 0 for _, theirs in pairs[2:])  # the moments
    done_with(folder)


def check_a_second_fit_goes_on():
    model, _ = fit("parameter_server:async")
    fit("parameter_server:async", model)
    assert int(model.optimizer.iterations) == 4 * SIZE * STEPS


def check_a_loop_of_ones_own_is_refused_behind_a_fit():
    model, _ = fit("parameter_server:async")
    with pytest.raises(ValueError, match="'parameter_server:async' needs a `fit\\(\\)`"):
        model.train_on_batch(*(one[:BATCH] for one in DATA))


def check_what_is_unfrozen_counts_from_the_next_compile_on():
    model = conv_net()
    model.layers[-1].trainable = False
    model, _ = fit("parameter_server:async", classify(model, keras.optimizers.SGD(0.02)))
    before = model.layers[-1].get_weights()
    model.layers[-1].trainable = True  # without a new compile() Keras goes on with the step that it has traced
    fit("parameter_server:async", model)
    for one, other in zip(before, model.layers[-1].get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def check_servers_serve_without_any_data_of_their_own():
    x, y = easyscale.shard(*DATA)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH).take(0 if comm.is_server else STEPS)
    model = classify(conv_net(), keras.optimizers.SGD(0.02))
    callbacks = [easyscale.callbacks.Distribute("parameter_server:async")]
    history = model.fit(data, epochs=2, verbose=0, shuffle=False, callbacks=callbacks).history
    assert applied(history) == [SIZE * STEPS] * 2


def check_what_servers_cannot_do_is_refused_before_the_first_step():
    for optimizer, reason in (
        (keras.optimizers.SGD(use_ema=True), "moving averages"),
        (keras.optimizers.SGD(gradient_accumulation_steps=2), "accumulates"),
    ):
        model = classify(conv_net(), optimizer)
        with pytest.raises(ValueError, match=f"servers that do not wait for all workers.*{reason}"):
            model.fit(
                *easyscale.shard(*DATA), verbose=0, callbacks=[easyscale.callbacks.Distribute("parameter_server:async")]
            )


def check_optimizers_that_look_at_whole_weights_have_whole_weights_also_in_checkpoints():
    folder = new_folder()
    makes = {
        "LARS": lambda: easyscale.optimizers.LARS(0.1),
        "Lamb": keras.optimizers.Lamb,
        "Muon": keras.optimizers.Muon,
        "Adafactor": lambda: keras.optimizers.Adafactor(epsilon_1=1e-8),
    }
    for name, make in makes.items():
        model, _ = fit("parameter_server:async", classify(conv_net(), make()), checkpoint=folder / name)
        assert int(model.optimizer.iterations) == 2 * SIZE * STEPS
        assert all(np.isfinite(weight).all() for weight in model.get_weights())
        if name in ("LARS", "Lamb"):  # whose states have the shapes of weights, as Muon's
            continue
        again, _ = fit("parameter_server:async", classify(conv_net(), make()), checkpoint=folder / name)
        both = [[*one.get_weights(), *map(np.array, one.optimizer.variables)] for one in (model, again)]
        for before, after in zip(*both, strict=True):
            np.testing.assert_array_equal(before, after)
    done_with(folder)


class Pair(keras.Model):
    """Two parts with an optimizer each, of which the first makes two steps in one; and a part that nobody uses."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.idle = conv_net("first"), keras.layers.Dense(10), keras.layers.Dense(3)
        self.loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def compile(self, first, second):
        super().compile()
        self.first_optimizer, self.second_optimizer = first, second

    def call(self, x):
        return self.second(self.first(x)) + 0 * keras.ops.mean(self.idle(self.first(x)))

    def train_step(self, data):
        x, y = data
        for part, optimizer in ((self.first, self.first_optimizer),) * 2 + ((self.second, self.second_optimizer),):
            with tf.GradientTape() as tape:
                loss = self.loss_of(y, self(x, training=True))
            variables = part.trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


def check_several_optimizers_and_several_steps_in_one():
    for is_built in (True, False):
        model = Pair()
        model.compile(keras.optimizers.SGD(0.02), keras.optimizers.Adam())
        if is_built:
            model(DATA[0][:1])
        fit_weights(model, "parameter_server:async")
        assert int(model.first_optimizer.iterations) == 2 * 2 * SIZE * STEPS
        assert int(model.second_optimizer.iterations) == 2 * SIZE * STEPS


def fit_weights(model, exchange, callbacks=()):
    callbacks = [easyscale.callbacks.Distribute(exchange), *callbacks]
    options = {"batch_size": BATCH, "epochs": 2, "verbose": 0, "shuffle": False}
    model.fit(*easyscale.shard(*DATA), callbacks=callbacks, **options)
    assert_equal_ranks(model.get_weights())


def check_weights_without_a_gradient_stay():
    keras.utils.set_random_seed(1)
    inputs = keras.Input((8, 8, 1))
    flat = keras.layers.Flatten()(inputs)
    used, idle = keras.layers.Dense(10), keras.layers.Dense(10)
    model = keras.Model(inputs, keras.layers.Add()([used(flat), keras.ops.stop_gradient(idle(flat))]))
    classify(model, keras.optimizers.AdamW(0.01, weight_decay=0.5))
    before = np.array(idle.kernel)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras says that there are no gradients
        fit_weights(model, "parameter_server:async")
    chiefs = comm.all_gather_rows(before)[0]
    np.testing.assert_array_equal(np.array(idle.kernel), chiefs)


def check_weights_that_callbacks_set_between_epochs_are_the_servers():
    class Set(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 0:
                self.model.set_weights([np.ones_like(weight) for weight in self.model.get_weights()])

    model = classify(conv_net(), keras.optimizers.SGD(0.0))
    fit_weights(model, "parameter_server:async", [Set()])
    assert all((weight == 1).all() for weight in model.get_weights())


def check_workers_learn():
    """The digits by four quick passes; what one process reaches with the same rate is 0.93."""
    data = digits(1437)
    for exchange in ("parameter_server:async", "parameter_server:bounded"):
        _, history = fit(exchange, data=data, epochs=4, validation_data=easyscale.shard(*data))
        assert history["val_accuracy"][-1] > 0.85, history
