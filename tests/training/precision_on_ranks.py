"""Mixed precision: gradients that overflow on one rank alone make all ranks skip the step."""

import warnings

import keras
import numpy as np
import pytest
from covering import full
from models import assert_as_one_process, assert_equal_ranks, classify, conv_net, different_start, digits

import easyscale
from easyscale.callbacks import Distribute

comm = easyscale.communicator.get()
COUNT = 4 * 24 + 2


def _sgd(**options):
    return keras.optimizers.SGD(0.01, momentum=0.9, **options)


def _mixed(policy, optimizer, **options):
    keras.config.set_dtype_policy(policy)
    try:
        return classify(conv_net(), optimizer, **options)
    finally:
        keras.config.set_dtype_policy("float32")


def _fit(model, x, y, batch, **options):
    return model, model.fit(x, y, batch, epochs=2, shuffle=False, verbose=0, **options)


def _as_one_process(policy, tolerance, **optimizer):
    data = digits(COUNT)

    def distributed():
        batch = easyscale.local_batch(24)
        return _fit(_mixed(policy, _sgd(**optimizer)), *easyscale.shard(*data), batch, callbacks=[Distribute()])[0]

    delta = assert_as_one_process(distributed, lambda: _fit(_mixed(policy, _sgd(**optimizer)), *data, 24)[0], tolerance)
    return delta


@full
def check_mixed_float16_takes_the_steps_of_one_process_to_its_rounding():
    return _as_one_process("mixed_float16", 2e-3)


@full
def check_mixed_bfloat16_takes_the_steps_of_one_process_to_its_rounding():
    return _as_one_process("mixed_bfloat16", 2e-2)


class Scales(keras.callbacks.Callback):
    """What dynamic loss scaling does after each step."""

    def __init__(self):
        super().__init__()
        self.scales, self.iterations = [], []

    def on_train_batch_end(self, batch, logs=None):
        scaling = self.model.optimizer.inner_optimizer
        self.scales.append(float(scaling.dynamic_scale))
        self.iterations.append(int(scaling.inner_optimizer._iterations))


def _overflow_on_one_rank(make, **optimizer):
    """The last rank's second batch overflows float16. Two epochs of four batches of 8 samples each."""
    different_start()
    x, y = digits(8 * comm.size * 4)
    x, y = easyscale.shard(x, y)
    if comm.rank == comm.size - 1:
        x = x.copy()
        x[8] = 6e4  # the sum over a 3x3 patch is more than 65504
    scales = Scales()
    model = make()
    with warnings.catch_warnings():
        warnings.simplefilter("error", easyscale.EasyScaleWarning)  # that is normal
        _fit(model, x, y, 8, callbacks=[scales, Distribute()])
    initial = 2.0**15
    assert scales.scales == [initial] + [initial / 2] * 4 + [initial / 4] * 3
    assert scales.iterations == [1, 1, 2, 3, 4, 4, 5, 6]
    assert all(np.isfinite(variable.numpy()).all() for variable in model.weights)
    assert_equal_ranks([variable.numpy() for variable in model.weights])
    assert_equal_ranks([np.asarray(variable.numpy()) for variable in model.optimizer.variables])
    return model


@full
def check_overflow_on_one_rank_with_the_optimizer_that_compile_wraps():
    model = _overflow_on_one_rank(lambda: _mixed("mixed_float16", _sgd()))
    assert isinstance(model.optimizer.inner_optimizer, keras.optimizers.LossScaleOptimizer)


@full
def check_overflow_on_one_rank_with_an_optimizer_wrapped_by_hand():
    def make():
        optimizer = easyscale.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(_sgd()), "tree")
        return _mixed("mixed_float16", optimizer, auto_scale_loss=False)

    _overflow_on_one_rank(make)


def check_overflow_on_one_rank_with_a_distributed_optimizer_inside_loss_scaling():
    def make():
        model = _mixed("mixed_float16", easyscale.DistributedOptimizer(_sgd(), "ring"))
        assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
        return model

    model = _overflow_on_one_rank(make)
    assert isinstance(model.optimizer, easyscale.DistributedOptimizer)


def check_overflow_on_one_rank_while_gradients_are_accumulated():
    def make():
        return _mixed("mixed_float16", _sgd(gradient_accumulation_steps=2))

    _overflow_on_one_rank(make)


@full
def check_loss_scaling_outside_is_refused_where_nothing_turns_it_inside_out():
    x, y = easyscale.shard(*digits(48))
    model = _mixed("mixed_float16", easyscale.DistributedOptimizer(_sgd(), "ring"))
    with pytest.raises(ValueError, match="must stand outside of a `LossScaleOptimizer`"):
        model.fit(x, y, verbose=0)
