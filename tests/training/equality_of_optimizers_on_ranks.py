"""P processes take the steps of one, as in `equality_on_ranks.py`: optimizers, and what they do to gradients."""

import functools
from unittest import mock

import keras
import numpy as np
from models import TOLERANCE, assert_as_one_process, assert_equal_ranks, conv, dense, digits, equal, in_scope, sgd

import easyscale

# Optimizers and what they do to gradients


def check_an_update_that_xla_compiles():
    from easyscale.backend.tensorflow import compiled_update

    with mock.patch.object(compiled_update, "XLA_FROM", 0):
        return equal(dense(lambda: keras.optimizers.AdamW(weight_decay=0.1, global_clipnorm=0.1)))


def check_lars():
    schedule = easyscale.optimizers.schedules.PolynomialDecay(0.3, 12, warmup_steps=4)
    return equal(conv(lambda: easyscale.optimizers.LARS(schedule, weight_decay=1e-3, trust_coefficient=0.02)))


def check_a_warm_up_with_momentum_correction():
    warmup = easyscale.callbacks.LearningRateWarmup(epochs=1.5, start=0.01)
    return equal(dense(lambda: easyscale.optimizers.SGD(0.2)), callbacks=[warmup])


def check_adam_on_all_digits():
    return equal(conv(keras.optimizers.Adam), digits(1437), global_batch=48)


def check_global_clipnorm():
    return equal(dense(lambda: sgd(global_clipnorm=0.1)))


def check_clipnorm_without_graphs():
    return equal(dense(lambda: sgd(clipnorm=0.1), run_eagerly=True))


def check_clipvalue():
    return equal(dense(lambda: sgd(clipvalue=0.01)))


def check_weight_decay():
    return equal(dense(lambda: keras.optimizers.AdamW(weight_decay=0.1)))


def check_exponential_moving_average_of_weights():
    return equal(dense(lambda: sgd(use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=3)))


def check_loss_scale_factor():
    return equal(dense(lambda: sgd(loss_scale_factor=128.0)))


def check_gradient_accumulation_steps():
    return equal(dense(lambda: sgd(gradient_accumulation_steps=2)))


def check_gradient_accumulation_that_goes_on_in_the_next_fit():
    x, y = digits(2 * 24 + 5)
    optimizer = functools.partial(keras.optimizers.Adam, gradient_accumulation_steps=2)
    sums = []

    def train(parts, size, callbacks):
        model = in_scope(dense(optimizer)) if callbacks else dense(optimizer)()
        for _ in range(3):
            model.fit(*parts, batch_size=size, shuffle=False, verbose=0, callbacks=callbacks)
        sums.append([np.array(variable) for variable in model.optimizer.variables])
        return model

    def distributed():
        return train(easyscale.shard(x, y), easyscale.local_batch(24), [easyscale.callbacks.Distribute()])

    delta = assert_as_one_process(distributed, lambda: train((x, y), 24, []))
    assert_equal_ranks(sums[-1])
    for ours, expected in zip(sums[-1], sums[0], strict=True):  # on the chief, that is
        np.testing.assert_allclose(ours, expected, atol=TOLERANCE)
    return delta


def check_gradient_accumulation_under_loss_scaling():
    def optimizer():
        inner = sgd(gradient_accumulation_steps=2)
        return keras.optimizers.LossScaleOptimizer(inner, initial_scale=1024.0)

    return equal(dense(optimizer))


def check_gradient_accumulation_with_a_loss_scale_factor():
    return equal(dense(lambda: sgd(gradient_accumulation_steps=2, loss_scale_factor=64.0)))


def check_an_optimizer_that_counts_before_its_update():
    # With one exchange: Nadam's product is none of its variables, so its model is not made as it was for another.
    return equal(dense(keras.optimizers.Nadam), exchanges=["ring"], distribute={"update": "replicated"})


def check_an_optimizer_that_counts_before_its_update_under_loss_scaling():
    def optimizer():
        return keras.optimizers.LossScaleOptimizer(keras.optimizers.Nadam(), initial_scale=64.0)

    return equal(dense(optimizer), exchanges=["ring"])


def check_learning_rate_schedule():
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 5, 0.9)
    return equal(dense(lambda: keras.optimizers.SGD(schedule, momentum=0.9)))


def check_gradients_that_leave_in_buckets():
    return equal(conv(keras.optimizers.Adam), distribute={"bucket_bytes": 512})


def check_gradients_that_leave_in_buckets_to_replicated_updates():
    return equal(conv(sgd), distribute={"bucket_bytes": 512, "update": "replicated"})


def check_steps_per_execution():
    return equal(dense(sgd, steps_per_execution=3))


class ByNorm(keras.optimizers.SGD):
    """An optimizer of the user's own: it divides by the norm of all gradients together."""

    def apply(self, grads, trainable_variables=None):
        norm = keras.ops.sqrt(sum(keras.ops.sum(keras.ops.square(gradient)) for gradient in grads))
        return super().apply([gradient / norm for gradient in grads], trainable_variables)


def check_an_optimizer_of_ones_own_that_looks_at_all_gradients():
    return equal(conv(lambda: ByNorm(0.01)))
