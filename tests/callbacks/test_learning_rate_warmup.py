"""`LearningRateWarmup` on one worker; `tests/training/equality_on_ranks.py` has it on several."""

import keras
import numpy as np
import pytest

import easyscale
from easyscale.callbacks import LearningRateWarmup

X, Y = np.ones((32, 2), "float32"), np.ones((32, 1), "float32")


class Rates(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(float(self.model.optimizer.learning_rate))


def _rates(warmup, optimizer, epochs=3, distribute=False, **options):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
    rates = Rates()
    callbacks = [warmup, rates] + [easyscale.callbacks.Distribute()] * distribute
    model.fit(X, Y, batch_size=8, epochs=epochs, verbose=0, callbacks=callbacks, **options)
    return rates.seen


@pytest.mark.parametrize("distribute", [False, True])
def test_the_rate_grows_with_every_batch(distribute):
    optimizer = keras.optimizers.SGD(0.8)
    rates = _rates(LearningRateWarmup(2, start=0.0), optimizer, distribute=distribute)
    assert rates == pytest.approx([0.1 * step for step in range(8)] + [0.8] * 4)


def test_it_goes_on_in_a_later_epoch():
    warmup = LearningRateWarmup(2, start=0.0, target=0.8)
    assert _rates(warmup, keras.optimizers.SGD(0.3), 2, initial_epoch=1) == pytest.approx([0.4, 0.5, 0.6, 0.7])


def test_others_change_the_rate_behind_it():
    scheduler = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.01 if epoch == 2 else rate)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.8), "mse")
    rates = Rates()
    warmup = LearningRateWarmup(1, start=0.4)
    model.fit(X, Y, batch_size=8, epochs=3, verbose=0, callbacks=[scheduler, warmup, rates])
    assert rates.seen == pytest.approx([0.4, 0.5, 0.6, 0.7, *[0.8] * 4, *[0.01] * 4])


def test_the_rate_of_a_loss_scale_optimizer_grows():
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.8))
    assert _rates(LearningRateWarmup(1, start=0.4), optimizer, 1) == pytest.approx([0.4, 0.5, 0.6, 0.7])


def test_one_worker_has_nothing_to_warm_up_unless_told_so():
    assert _rates(LearningRateWarmup(), keras.optimizers.SGD(0.8), 1) == pytest.approx([0.8] * 4)


def test_a_schedule_is_refused():
    optimizer = keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 5, 0.9))
    with pytest.raises(ValueError, match="needs an optimizer whose learning rate is a number. Received: SGD with Exp"):
        _rates(LearningRateWarmup(), optimizer)


def test_data_that_does_not_say_how_much_it_is_needs_the_number_of_steps():
    def data():
        while True:
            yield X[:8], Y[:8]

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.8), "mse")
    limited = (batch for batch, _ in zip(data(), range(4), strict=False))
    with pytest.raises(ValueError, match="must know how many batches an epoch has.*Pass `steps_per_epoch`"):
        model.fit(limited, verbose=0, callbacks=[LearningRateWarmup()])


@pytest.mark.parametrize(
    "options",
    [
        {"epochs": 0},
        {"start": -1},
        {"target": -0.1},
        {"steps_per_epoch": 0},
        {"epochs": float("inf")},
        {"start": "a"},
        {"steps_per_epoch": 1.5},
    ],
)
def test_numbers_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match=f"`{next(iter(options))}` must be"):
        LearningRateWarmup(**options)
