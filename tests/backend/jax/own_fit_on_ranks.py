"""`fit()` with `Distribute` on JAX: what is JAX's own."""

import contextlib
import gc
import sys
import warnings
import weakref
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "shared"), str(Path(__file__).parents[2] / "training")]

import fit_on_ranks as common  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import keras  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
from covering import full  # noqa: E402
from models import assert_as_one_process, classify, conv_net, dense, digits, equal, sgd  # noqa: E402

import easyscale  # noqa: E402
from easyscale.callbacks import Distribute  # noqa: E402

comm = easyscale.communicator.get()


class OwnLoss(keras.Model):
    """A loss and metrics of one's own, which is what is left of a `train_step` where workers are many."""

    def __init__(self):
        super().__init__()
        self.net = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(10)])
        self.loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.right = keras.metrics.SparseCategoricalAccuracy(name="right")

    def call(self, x):
        return self.net(x)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return self.loss_of(y, y_pred) + 0.01 * keras.ops.mean(keras.ops.square(self.net.layers[-1].kernel))

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        self.right.update_state(y, y_pred)
        return {"right": self.right.result(), "loss": self._loss_tracker.result()}


def check_a_loss_and_metrics_of_ones_own():
    def build():
        model = OwnLoss()
        model.compile(sgd())
        return model

    return equal(build)


class OwnStep(keras.Model):
    """A `train_step` of one's own, which is compiled as one."""

    def train_step(self, state, data):
        return super().train_step(state, data)


@full
def check_a_train_step_of_ones_own_is_refused_where_workers_are_many():
    inputs = keras.Input((8, 8, 1))
    model = OwnStep(inputs, keras.layers.Dense(10)(keras.layers.Flatten()(inputs)))
    classify(model, sgd())
    expected = contextlib.nullcontext()
    if comm.size > 1:
        expected = pytest.raises(ValueError, match="must have Keras's own `train_step`.* Received: OwnStep.train_step")
    with expected:
        common.fit_a_little(model)


@full
def check_loss_scaling_is_refused_where_workers_are_many():
    keras.config.set_dtype_policy("mixed_float16")
    model = classify(conv_net(), sgd())
    keras.config.set_dtype_policy("float32")
    expected = contextlib.nullcontext()
    if comm.size > 1:
        expected = pytest.raises(ValueError, match="loss scaling needs another backend.* Use the policy 'mixed_bf")
    with expected:
        common.fit_a_little(model)


@full
def check_several_steps_in_one_execution():
    return max(equal(dense(sgd, steps_per_execution=steps), epochs=3, validates=True) for steps in (2, 3))


@full
def check_weights_that_a_callback_sets_count():
    """Keras on JAX keeps what it trains in a place of its own; callbacks see the model, and change it."""

    def train(x, y, batch, **options):
        class Shrinks(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                kernel = self.model.layers[-1].kernel
                kernel.assign(0.5 * kernel)

        model = dense(sgd)()
        callbacks = [*options.pop("callbacks", []), Shrinks()]
        model.fit(x, y, batch, epochs=2, shuffle=False, verbose=0, callbacks=callbacks, **options)
        return model

    x, y = digits(96)  # a rank without a batch would call no callback
    options = {"callbacks": [Distribute()]}
    return assert_as_one_process(
        lambda: train(*easyscale.shard(x, y), easyscale.local_batch(24), **options), lambda: train(x, y, 24)
    )


@full
def check_arrays_of_jax():
    x, y = digits(98)

    def train(x, y, batch, **options):
        model = dense(sgd)()
        return model, model.fit(jnp.asarray(x), jnp.asarray(y), batch, shuffle=False, verbose=0, **options)

    def distributed():
        own = easyscale.shard(jnp.asarray(x), jnp.asarray(y))
        return train(*own, easyscale.local_batch(24), callbacks=[Distribute()])

    return assert_as_one_process(distributed, lambda: train(x, y, 24))


def _fit_with_gradients(look):
    """Return a model, trained with a function that is given the gradients of each step."""
    own = easyscale.DistributedOptimizer.apply

    def apply(optimizer, gradients, variables=None):
        look(gradients)
        return own(optimizer, gradients, variables)

    easyscale.DistributedOptimizer.apply = apply
    try:
        x, y = easyscale.shard(*digits(24 * comm.size))
        model = dense(sgd)()
        model.fit(x, y, 8, epochs=2, shuffle=False, verbose=0, callbacks=[Distribute()])
    finally:
        easyscale.DistributedOptimizer.apply = own
    return model


@full
def check_gradients_are_written_in_the_place_of_those_before():
    places = []
    if comm.size > 1:  # else Keras's own step is one function
        _fit_with_gradients(lambda gradients: places.append([each.unsafe_buffer_pointer() for each in gradients]))
        assert len(places) == 6 and all(each == places[0] for each in places), places


@full
def check_a_model_holds_no_gradients_behind_a_fit():
    gradients = []
    if comm.size > 1:
        model = _fit_with_gradients(lambda given: gradients.extend(weakref.ref(each) for each in given))
        gc.collect()
        assert len(gradients) == 6 * len(model.trainable_variables)
        assert all(gradient() is None for gradient in gradients)


@full
def check_gradients_that_somebody_keeps_stay_what_they_were():
    arrays, views = [], []

    def keep(gradients):
        arrays.append((gradients[0], np.array(gradients[0])))
        views.append((np.asarray(gradients[1]), np.array(gradients[1])))

    if comm.size > 1:
        _fit_with_gradients(keep)
        for kept, copy in [*arrays, *views]:
            np.testing.assert_array_equal(kept, copy)
        assert len(arrays) == 6


@full
def check_each_shape_of_a_batch_is_traced_once():
    traces = []

    class Traced(keras.layers.Layer):
        def call(self, x):
            if isinstance(x, jax.core.Tracer):
                traces.append(x.shape)
            return x

    layers = [keras.Input((8, 8, 1)), keras.layers.Flatten(), Traced(), keras.layers.Dense(10)]
    model = classify(keras.Sequential(layers), sgd())
    x, y = easyscale.shard(*digits(24 * comm.size))
    counts = []
    for _ in range(2):
        model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0, callbacks=[Distribute()])
        counts.append(len(traces))
    assert counts[0] == counts[1] or comm.size == 1, traces


@full
def check_compiling_stays_on():
    model = classify(conv_net(), sgd(), jit_compile=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", easyscale.EasyScaleWarning)
        common.fit_a_little(model)
    assert model.jit_compile


@full
def check_without_compiling():
    return equal(dense(sgd, run_eagerly=True), epochs=1)


@full
def check_an_exchange_inside_of_jit_is_refused():
    variable = keras.Variable([0.0])
    optimizer = easyscale.DistributedOptimizer(keras.optimizers.SGD(1.0))
    optimizer.build([variable])
    state = [one.value for one in optimizer.variables]
    step = jax.jit(lambda gradient: optimizer.stateless_apply(state, [gradient], [variable.value]))
    expected = contextlib.nullcontext()
    if comm.size > 1:
        expected = pytest.raises(ValueError, match="must not be inside of `jax.jit`. Received: a gradient that is trac")
    with expected:
        step(jnp.asarray([1.0]))
