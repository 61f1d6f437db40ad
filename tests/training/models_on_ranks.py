"""Models of all kinds."""

import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
from covering import full
from models import (
    assert_equal_ranks,
    classify,
    conv_net,
    different_start,
    digits,
    equal,
    single_start,
)

import easyscale
from easyscale.callbacks import Distribute

GLOBAL_BATCH = 24
# Of Keras's private module, where it has another name from 3.16 on.
TensorFlowTrainer = next(
    kind for kind in keras.Model.__mro__ if kind.__module__ == "keras.src.backend.tensorflow.trainer"
)


def _sgd(rate=0.1):
    return keras.optimizers.SGD(rate, momentum=0.9)


def check_a_loss_that_is_no_number_is_refused():
    model = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)
    model.compile("sgd", loss)
    with pytest.raises(ValueError, match="must be one number for a batch. Received: reduction=None of SparseCat"):
        model.fit(*easyscale.shard(*digits(48)), verbose=0, callbacks=[easyscale.callbacks.Distribute()])


class Reducing(keras.Model):
    """Reduces a loss for each sample by itself."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return keras.ops.mean(self.loss(y, y_pred))


@full
def check_a_loss_of_ones_own_may_reduce_one_for_each_sample():
    def build():
        inputs = keras.Input((8, 8, 1))
        outputs = keras.layers.Dense(10)(keras.layers.Flatten()(inputs))
        model = Reducing(inputs, outputs)
        model.compile(_sgd(), keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None))
        return model

    equal(build, data=digits(48), exchanges=["ring"])


@full
def check_a_model_that_is_built_by_its_first_batch():
    def build():
        layers = [keras.layers.Flatten(), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(10)]
        return classify(keras.Sequential(layers), _sgd())

    equal(build, exchanges=["ring"])


def check_a_model_that_is_built_by_its_first_batch_and_runs_eagerly():
    def build():
        return classify(keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(10)]), _sgd(), run_eagerly=True)

    equal(build, data=digits(48), exchanges=["ring"])


@full
def check_variables_without_gradients_and_frozen_ones():
    class Partly(keras.Model):
        def __init__(self):
            super().__init__()
            self.flatten, self.used, self.unused = keras.layers.Flatten(), keras.layers.Dense(10), keras.layers.Dense(3)
            self.frozen = keras.layers.Dense(20, trainable=False)

        def call(self, x):
            x = self.frozen(self.flatten(x))
            self.unused(x)
            return self.used(x)

    equal(lambda: classify(Partly(), _sgd()), exchanges=["ring"])


def check_two_inputs_two_outputs():
    x, y = digits()

    def build():
        a, b = keras.Input((8, 8, 1), name="a"), keras.Input((8, 8, 1), name="b")
        flat = keras.layers.Flatten()(keras.layers.Concatenate()([a, b]))
        outputs = {"one": keras.layers.Dense(10, name="one")(flat), "two": keras.layers.Dense(1, name="two")(flat)}
        model = keras.Model({"a": a, "b": b}, outputs)
        losses = {"one": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "two": "mse"}
        model.compile(_sgd(0.01), losses, metrics={"one": ["accuracy"], "two": ["mae"]})
        return model

    equal(
        build, data=({"a": x, "b": x[::-1].copy()}, {"one": y, "two": (y / 10).astype("float32")}), exchanges=["ring"]
    )


@full
def check_a_trainer_that_is_no_model():
    class TrainerOnly(TensorFlowTrainer, keras.layers.Dense):
        def __init__(self):
            keras.layers.Dense.__init__(self, 10)
            TensorFlowTrainer.__init__(self)

    x, y = digits()
    equal(lambda: classify(TrainerOnly(), _sgd()), data=(x.reshape(len(x), -1), y), exchanges=["ring"])


def check_a_model_in_a_strategy_of_ones_own_is_refused():
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        model = classify(conv_net(), _sgd())
    with pytest.raises(ValueError, match="MirroredStrategy.*easyscale.scope"):
        model.fit(*digits(24), verbose=0, callbacks=[Distribute()])


def check_jit_compile_is_turned_off():
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", easyscale.EasyScaleWarning)
        equal(lambda: classify(conv_net(), _sgd(), jit_compile=True), exchanges=["ring"])


def _normalized():
    layers = [keras.Input((8, 8, 1)), keras.layers.Conv2D(4, 3), keras.layers.BatchNormalization()]
    return classify(keras.Sequential([*layers, keras.layers.Flatten(), keras.layers.Dense(10)]), _sgd())


@full
def check_batch_normalization_of_each_rank_by_itself_keeps_one_moving_average():
    different_start()
    xs, ys = easyscale.shard(*digits(960 + 1))  # one rank has one step more
    model = _normalized()
    history = model.fit(xs, ys, batch_size=16, epochs=3, callbacks=[Distribute()], verbose=0)
    assert_equal_ranks(model.get_weights())
    assert history.history["accuracy"][-1] > 0.6


@full
def check_moving_averages_after_a_step_are_those_of_the_global_batch():
    x, y = digits(24 + 1)

    def train(x, y, **options):
        model = _normalized()
        model.fit(x, y, batch_size=48, verbose=0, shuffle=False, **options)
        return model

    different_start()
    model = train(*easyscale.shard(x, y), callbacks=[Distribute()])
    if easyscale.is_chief():
        single_start()
        expected = train(x, y).layers[1]
        np.testing.assert_allclose(model.layers[1].moving_mean.numpy(), expected.moving_mean.numpy(), atol=1e-6)
        # the variance of the global batch, less that between ranks
        assert (model.layers[1].moving_variance.numpy() <= expected.moving_variance.numpy() + 1e-6).all()


@full
def check_moving_averages_are_one_when_gradients_are_accumulated():
    different_start()
    model = _normalized()
    classify(model, keras.optimizers.SGD(0.1, gradient_accumulation_steps=4))
    xs, ys = easyscale.shard(*digits(6 * 8 * easyscale.size()))  # the last exchange is not in the last step
    model.fit(xs, ys, batch_size=8, callbacks=[Distribute()], verbose=0)
    assert_equal_ranks(model.get_weights())


@full
def check_gradients_of_the_last_layers_leave_while_those_of_the_first_are_computed():
    exchanged, in_time = threading.Event(), []

    class Noting(easyscale.exchange.get("ring").__class__):
        def _reduce(self, buffer):
            super()._reduce(buffer)
            exchanged.set()

    @tf.custom_gradient
    def late(inputs):
        def gradient(upstream):
            def wait(value):
                in_time.append(exchanged.wait(10))
                return value

            return tf.ensure_shape(tf.numpy_function(wait, [upstream], upstream.dtype, stateful=False), upstream.shape)

        return tf.identity(inputs), gradient

    different_start()
    dense = [keras.layers.Dense(8) for _ in range(3)]
    model = keras.Sequential([keras.Input((8,)), dense[0], keras.layers.Lambda(late), *dense[1:]])
    model.compile("sgd", "mse")
    x = np.ones((16, 8), "float32")
    callbacks = [Distribute(Noting(), bucket_bytes=64)]
    callbacks.append(keras.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: exchanged.clear()))
    model.fit(x, x, batch_size=4, verbose=0, callbacks=callbacks)
    assert in_time == [True] * 4
    assert_equal_ranks(model.get_weights())
