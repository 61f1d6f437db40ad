"""Callbacks that decide, Keras's own and the user's: what one rank decides holds on all of them, in the same step."""

import keras
import numpy as np
import pytest
from covering import full
from keras.callbacks import (
    EarlyStopping,
    LambdaCallback,
    LearningRateScheduler,
    ModelCheckpoint,
    ReduceLROnPlateau,
    TerminateOnNaN,
)
from models import classify, different_start
from one_process import DATA, GLOBAL_BATCH, STEPS, UNEVEN, as_one_process, small_net, train

import easyscale
from easyscale.callbacks import Distribute

# Decisions at the end of an epoch


@full
def check_early_stopping_restores_the_best_weights_on_all_ranks():
    def callbacks(folder):
        return [EarlyStopping("val_loss", mode="max", patience=1, restore_best_weights=True)]

    assert as_one_process(callbacks, epochs=4) == 2 * STEPS


@full
def check_early_stopping_on_the_metric_of_all_ranks():
    """On the last rank the validation's loss rises from the start; on all together it falls."""
    assert as_one_process(lambda folder: [EarlyStopping("val_loss", patience=0)], epochs=4) == 4 * STEPS


@full
def check_early_stopping_on_the_chief_alone_stops_all_ranks():
    def callbacks(folder):
        return [EarlyStopping("val_loss", mode="max", patience=1)]

    assert as_one_process(callbacks, on=0, epochs=4) == 2 * STEPS


@full
def check_reduce_lr_on_plateau():
    def callbacks(folder):
        return [ReduceLROnPlateau("val_loss", mode="max", patience=1, factor=0.5)]

    as_one_process(callbacks, place=0)


@full
def check_learning_rate_scheduler():
    as_one_process(lambda folder: [LearningRateScheduler(lambda epoch, rate: rate * 0.5)])


class _Rates(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.rates = []

    def on_epoch_end(self, epoch, logs=None):
        self.rates.append(float(self.model.optimizer.learning_rate))


@full
def check_a_learning_rate_that_differs_between_ranks_is_the_chiefs():
    rates = _Rates()
    scheduler = LearningRateScheduler(lambda epoch: 0.1 / (1 + epoch + easyscale.rank()))
    different_start()
    train([scheduler, rates, Distribute()], shard=True)
    np.testing.assert_allclose(rates.rates, [0.1, 0.1 / 2, 0.1 / 3], rtol=1e-6)


def check_schedulers_of_several_optimizers_in_one():
    if not hasattr(keras.optimizers, "MultiOptimizer"):
        return

    def build():
        sgd, adam = keras.optimizers.SGD(0.1, name="sgd"), keras.optimizers.Adam(0.01, name="adam")
        return small_net(keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(sgd, {".*hidden/.*": adam})))

    def callbacks(folder):
        schedule = LearningRateScheduler(lambda epoch, rate: rate * 0.5)
        return [schedule, ReduceLROnPlateau("val_loss", mode="max", patience=1, factor=0.5)]

    as_one_process(callbacks, build=build)
    as_one_process(callbacks, build=build, on=0, epochs=2)


# Epochs


@full
def check_different_epochs_are_refused_on_all_ranks():
    with pytest.raises(easyscale.DesyncError, match="epochs=3 on rank 0, epochs=4 on rank 1"):
        train([Distribute()], shard=True, epochs=4 if easyscale.rank() == 1 else 3)


# Decisions within an epoch


class _WarmUp(keras.callbacks.Callback):
    """A user's own: another learning rate in each step."""

    def on_train_batch_begin(self, batch, logs=None):
        self.model.optimizer.learning_rate = 0.02 * (batch + 1)


class _CoolDown(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.model.optimizer.learning_rate = 0.1 / (batch + 1)


@full
def check_a_learning_rate_set_before_each_step_of_uneven_data():
    as_one_process(lambda folder: [_WarmUp()], data=UNEVEN)


@full
def check_a_learning_rate_set_on_the_chief_alone_holds_on_all_ranks():
    as_one_process(lambda folder: [_WarmUp()], on=0, data=UNEVEN)
    as_one_process(lambda folder: [_CoolDown()], on=0, place=0, data=UNEVEN)


@full
def check_terminate_on_nan_stops_all_ranks_in_the_step_of_one():
    x, y = DATA[0].copy(), DATA[1]
    x[2 * GLOBAL_BATCH + 1] = np.nan  # in the third batch of the second rank
    for steps_per_execution, steps in ((1, 3), (2, 4)):
        model = classify(small_net(), "sgd", steps_per_execution=steps_per_execution)
        _, history = train([TerminateOnNaN(), Distribute()], shard=True, data=(x, y), build=lambda model=model: model)
        assert int(model.optimizer.iterations) == steps
        assert history.epoch == [0] and np.isnan(history.history["loss"]).all()
        assert set(history.history) == {"accuracy", "loss", "val_accuracy", "val_loss"}


def _stop(callback, number, at):
    if number == at:
        callback.model.stop_training = True


def _lambda(hook, at):
    callback = LambdaCallback(**{hook: lambda number, logs: _stop(callback, number, at)})
    return [callback]


class _StopBeforeStep(keras.callbacks.Callback):
    """A user's own, as the three below."""

    def on_train_batch_begin(self, batch, logs=None):
        _stop(self, batch, at=2)


class _StopAfterStep(keras.callbacks.Callback):
    def on_batch_end(self, batch, logs=None):
        _stop(self, batch, at=2)


class _StopBeforeEpoch(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        _stop(self, epoch, at=1)


class _StopAfterEpoch(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        _stop(self, epoch, at=1)


@full
def check_a_stop_before_a_step_on_one_rank_stops_all_after_it():
    assert as_one_process(lambda folder: _lambda("on_train_batch_begin", 2), on=1) == 3
    assert as_one_process(lambda folder: [_StopBeforeStep()], on=2) == 3


@full
def check_a_stop_after_a_step_on_one_rank_stops_all_after_it():
    assert as_one_process(lambda folder: _lambda("on_train_batch_end", 2), on=1) == 3
    assert as_one_process(lambda folder: [_StopAfterStep()], on=2) == 3


@full
def check_a_stop_before_an_epoch_on_one_rank_leaves_all_one_step():
    assert as_one_process(lambda folder: _lambda("on_epoch_begin", 1), on=1) == STEPS + 1
    assert as_one_process(lambda folder: [_StopBeforeEpoch()], on=2) == STEPS + 1


@full
def check_a_stop_after_an_epoch_on_one_rank_stops_all_after_it():
    assert as_one_process(lambda folder: _lambda("on_epoch_end", 1), on=1) == 2 * STEPS
    assert as_one_process(lambda folder: [_StopAfterEpoch()], on=2) == 2 * STEPS


class _StopAfterSteps(keras.callbacks.Callback):
    """A user's own that counts steps by itself."""

    def __init__(self, steps):
        super().__init__()
        self.left = steps

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        self.model.stop_training = self.left == 0


@full
def check_stops_within_epochs_of_uneven_data_with_checkpoints():
    """The last step of an epoch is the chief's alone. It stops there, or some rank before."""

    def callbacks(who, steps):
        def make(folder):
            path = folder / "{epoch}-{batch}.weights.h5"
            decides = easyscale.rank() == who or folder.name == "alone"
            checkpoint = ModelCheckpoint(path, save_weights_only=True, save_freq=2)
            return [checkpoint, *([_StopAfterSteps(steps)] if decides else [])]

        return make

    for who, steps in ((0, STEPS), (1, STEPS - 1), (2, STEPS - 1), (0, 2 * STEPS - 1)):
        assert as_one_process(callbacks(who, steps), data=UNEVEN) == steps
