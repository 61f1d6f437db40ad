"""`fit()` with `Distribute` on JAX: what is JAX's own."""

import functools
import sys
import warnings
from pathlib import Path
from unittest import mock

sys.path[:0] = [str(Path(__file__).parents[1] / "shared"), str(Path(__file__).parents[2] / "training")]

import fit_on_ranks as common  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import keras  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
import scipy.sparse  # noqa: E402
from covering import full  # noqa: E402
from models import assert_as_one_process, classify, conv_net, dense, digits, equal, sgd  # noqa: E402

import easyscale  # noqa: E402
from easyscale.backend.jax import foreign_calls  # noqa: E402
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


class OwnSteps(keras.Model):
    """Steps as Keras's guide for JAX has them: functions of a state, whose loss is computed by hand."""

    def _loss(self, trained, moved, x, y, training):
        predicted, moved = self.stateless_call(trained, moved, x, training=training)
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)(y, predicted), (predicted, moved)

    def _count(self, counted, y, predicted, loss):
        logs, new = {}, []
        for metric in self.metrics:
            values, counted = counted[: len(metric.variables)], counted[len(metric.variables) :]
            given = (loss,) if metric.name == "loss" else (y, predicted)
            values = metric.stateless_update_state(values, *given)
            logs[metric.name] = metric.stateless_result(values)
            new += values
        return logs, new

    def train_step(self, state, data):
        trained, moved, listed, counted = state
        x, y = data
        of_loss = jax.value_and_grad(self._loss, has_aux=True)
        (loss, (predicted, moved)), gradients = of_loss(trained, moved, x, y, True)
        gradients, own = gradients[self.fixed :], trained[self.fixed :]
        own, listed = self.optimizer.stateless_apply(listed, gradients, own)
        logs, counted = self._count(counted, y, predicted, loss)
        return logs, (trained[: self.fixed] + own, moved, listed, counted)

    def test_step(self, state, data):
        trained, moved, counted = state
        x, y = data
        loss, (predicted, moved) = self._loss(trained, moved, x, y, False)
        logs, counted = self._count(counted, y, predicted, loss)
        return logs, (trained, moved, counted)


def _with_own_steps(optimizer=sgd, fixed=0, **options):
    def build():
        inputs = keras.Input((8, 8, 1))
        hidden = keras.layers.Dense(12, activation="relu")(keras.layers.Flatten()(inputs))
        model = OwnSteps(inputs, keras.layers.Dense(10)(hidden))
        model.fixed, of_some = fixed, optimizer()
        if fixed:
            of_some.build(model.trainable_variables[fixed:])
        model.compile(of_some, metrics=["accuracy"], **options)
        return model

    return build


def check_steps_of_ones_own():
    differences = [equal(_with_own_steps(), epochs=2)]
    differences.append(equal(_with_own_steps(lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.5)), epochs=2))
    eagerly = _with_own_steps(run_eagerly=True)
    differences.append(equal(eagerly, epochs=2, exchanges=["ring"], distribute={"update": "sharded"}))
    differences.append(equal(_with_own_steps(fixed=2), epochs=2))  # the optimizer is built for some of the weights
    return max(differences)


def _scaled(scale, growth, **options):
    adam = keras.optimizers.Adam(0.01, **options)
    return keras.optimizers.LossScaleOptimizer(adam, initial_scale=scale, dynamic_growth_steps=growth)


def check_loss_scaling():
    """The scale grows every third step; one of 1e38 overflows in the first steps, which all workers skip."""
    builds = [dense(lambda: _scaled(8.0, 3)), dense(lambda: _scaled(1e38, 50, clipnorm=0.3))]
    builds.append(dense(lambda: _scaled(8.0, 3, gradient_accumulation_steps=2)))
    builds.append(_with_own_steps(lambda: _scaled(8.0, 3)))
    return max(equal(build, epochs=2) for build in builds)


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


def check_a_second_compile_counts_in_the_next_fit():
    """Also where a step is two functions."""

    def train(x, y, batch, **options):
        model = dense(sgd)()
        model.fit(x, y, batch, shuffle=False, verbose=0, validation_data=(x, y), **options)
        total = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
        model.compile(keras.optimizers.SGD(0.002), total, metrics=["accuracy"])  # on batches of the same shapes
        return model, model.fit(x, y, batch, shuffle=False, verbose=0, validation_data=(x, y), **options)

    def distributed():
        return train(*easyscale.shard(x, y), easyscale.local_batch(24), callbacks=[Distribute()])

    x, y = digits(96)
    differences = [assert_as_one_process(distributed, lambda: train(x, y, 24))]
    with mock.patch.object(foreign_calls, "_registration", ["arrays on the platform 'gpu'"]):
        differences.append(assert_as_one_process(distributed, lambda: train(x, y, 24)))
    return max(differences)


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


def check_sparse_matrices():
    x = np.random.default_rng(0).standard_normal((72, 5)).astype("float32") * (np.arange(5) % 2)
    y = x.sum(axis=1)

    def train(x, y, batch, **options):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
        model.compile(sgd(), "mse")
        return model, model.fit(scipy.sparse.csr_matrix(x), y, batch, shuffle=False, verbose=0, **options)

    def distributed():
        return train(*easyscale.shard(x, y), easyscale.local_batch(24), callbacks=[Distribute()])

    return assert_as_one_process(distributed, lambda: train(x, y, 24))


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
def check_where_compiled_code_cannot_call_python_a_step_is_two_functions():
    """As on GPUs, and with versions of XLA's interface that are not known."""
    with mock.patch.object(foreign_calls, "_registration", ["arrays on the platform 'gpu'"]):
        x, y = digits(98)
        data = x, y, np.linspace(0, 2, len(x), dtype="float32")
        difference = equal(dense(sgd), data, validates=True)
        if comm.size > 1:
            with pytest.raises(
                ValueError, match="Python with arrays on the platform 'gpu'.* OwnSteps.train_step. Write"
            ):
                common.fit_a_little(_with_own_steps()())
            with pytest.raises(ValueError, match="loss scaling needs one process here: .* Use the policy 'mixed_bf"):
                common.fit_a_little(dense(lambda: _scaled(8.0, 3))())
    return difference


def _train_in_jit(optimizer, x, y, batch):
    """A loop as Keras's guide for JAX has it: one compiled step from a state to the next."""
    keras.utils.set_random_seed(1)
    model, loss_of = conv_net(), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer.build(model.trainable_variables)

    def loss(trained, rest, x, y):
        predicted, rest = model.stateless_call(trained, rest, x, training=True)
        return loss_of(y, predicted), rest

    @jax.jit
    def step(state, x, y):
        trained, rest, listed = state
        gradients, rest = jax.grad(loss, has_aux=True)(trained, rest, x, y)
        trained, listed = optimizer.stateless_apply(listed, gradients, trained)
        return trained, rest, listed

    kinds = model.trainable_variables, model.non_trainable_variables, optimizer.variables
    state = tuple([one.value for one in kind] for kind in kinds)
    for start in range(0, len(x), batch):
        state = step(state, x[start : start + batch], y[start : start + batch])
    for kind, values in zip(kinds, state, strict=True):
        for variable, value in zip(kind, values, strict=True):
            variable.assign(value)
    return model


def check_a_loop_whose_whole_step_is_compiled():
    x, y = digits(96)
    makes = [lambda: keras.optimizers.Adam(0.01), lambda: keras.optimizers.SGD(0.1, momentum=0.9, clipnorm=0.5)]
    exchanges = ["ring", "shared_memory"]

    def distributed(make, exchange):
        own = easyscale.shard(x, y)
        return _train_in_jit(easyscale.DistributedOptimizer(make(), exchange), *own, easyscale.local_batch(24))

    differences = []
    for make, exchange in zip(makes, exchanges, strict=True):
        own = functools.partial(distributed, make, exchange)
        differences.append(assert_as_one_process(own, functools.partial(_train_in_jit, make(), x, y, 24)))
    return max(differences)


class Unlucky(Exception):
    pass


def check_an_exception_of_an_exchange_in_a_compiled_step_is_raised_as_it_is():
    class Fails(easyscale.exchange.get("ring", comm).__class__):
        steps = 0

        def reduce(self, buffer):
            Fails.steps += 1
            if Fails.steps > 2:
                raise Unlucky(f"step {Fails.steps}")
            super().reduce(buffer)

    if comm.size > 1:
        model = dense(sgd)()
        x, y = easyscale.shard(*digits(24 * comm.size))
        with pytest.raises(Unlucky, match="step 3"):
            model.fit(x, y, 4, verbose=0, callbacks=[Distribute(Fails, update="sharded")])
        assert np.isfinite(model.get_weights()[0]).all()  # those before the step
