"""`fit()` with `Distribute` on JAX takes the steps of one process: models and losses, and what is JAX's own."""

import contextlib
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "training"))

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import keras  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
from equality_of_models_on_ranks import (  # noqa: E402
    check_class_weight,
    check_loss_of_words_that_are_not_masked,
    check_loss_that_ignores_a_class,
    check_loss_that_is_a_mean_by_sample_weights,
    check_loss_that_is_a_sum,
    check_loss_that_is_a_weighted_sum,
    check_one_step_in_an_epoch,
    check_regularizers_of_weights_and_activities,
    check_sample_weight,
    check_several_outputs_and_losses,
    check_two_steps_in_an_epoch_and_data_for_three,
)
from metrics_on_ranks import (  # noqa: E402
    check_evaluate_with_a_masked_loss_and_uneven_data,
    check_evaluate_with_the_callback_is_that_of_all_ranks,
    check_evaluating_after_fit_needs_no_other_rank,
    check_every_callback_sees_the_merged_metrics_wherever_it_stands,
    check_losses_of_several_outputs_where_the_last_batch_is_whole_on_some_ranks,
    check_metrics_that_are_not_means,
    check_predictions_of_all_ranks_in_order,
    check_the_chief_may_evaluate_by_itself_within_fit,
    check_weighted_metrics,
)
from models import (  # noqa: E402
    assert_as_one_process,
    classify,
    conv_net,
    dense,
    digits,
    equal,
    sgd,
)
from randomness_on_ranks import (  # noqa: E402
    check_random_layers_differ_between_ranks_and_come_again_with_the_seed,
)

import easyscale  # noqa: E402
from easyscale.callbacks import Distribute  # noqa: E402

comm = easyscale.communicator.get()

__all__ = [
    "check_class_weight",
    "check_evaluate_with_a_masked_loss_and_uneven_data",
    "check_evaluate_with_the_callback_is_that_of_all_ranks",
    "check_evaluating_after_fit_needs_no_other_rank",
    "check_every_callback_sees_the_merged_metrics_wherever_it_stands",
    "check_loss_of_words_that_are_not_masked",
    "check_loss_that_ignores_a_class",
    "check_loss_that_is_a_mean_by_sample_weights",
    "check_loss_that_is_a_sum",
    "check_loss_that_is_a_weighted_sum",
    "check_losses_of_several_outputs_where_the_last_batch_is_whole_on_some_ranks",
    "check_metrics_that_are_not_means",
    "check_one_step_in_an_epoch",
    "check_predictions_of_all_ranks_in_order",
    "check_random_layers_differ_between_ranks_and_come_again_with_the_seed",
    "check_regularizers_of_weights_and_activities",
    "check_sample_weight",
    "check_several_outputs_and_losses",
    "check_the_chief_may_evaluate_by_itself_within_fit",
    "check_two_steps_in_an_epoch_and_data_for_three",
    "check_weighted_metrics",
]


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


def check_a_train_step_of_ones_own_is_refused_where_workers_are_many():
    inputs = keras.Input((8, 8, 1))
    model = OwnStep(inputs, keras.layers.Dense(10)(keras.layers.Flatten()(inputs)))
    classify(model, sgd())
    expected = contextlib.nullcontext()
    if comm.size > 1:
        expected = pytest.raises(ValueError, match="must have Keras's own `train_step`.* Received: OwnStep.train_step")
    with expected:
        _fit_a_little(model)


def check_loss_scaling_is_refused_where_workers_are_many():
    keras.config.set_dtype_policy("mixed_float16")
    model = classify(conv_net(), sgd())
    keras.config.set_dtype_policy("float32")
    expected = contextlib.nullcontext()
    if comm.size > 1:
        expected = pytest.raises(ValueError, match="loss scaling needs another backend.* Use the policy 'mixed_bf")
    with expected:
        _fit_a_little(model)


def check_several_steps_in_one_execution():
    return equal(dense(sgd, steps_per_execution=2), epochs=3)


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


def check_arrays_of_jax():
    x, y = digits(98)

    def train(x, y, batch, **options):
        model = dense(sgd)()
        return model, model.fit(jnp.asarray(x), jnp.asarray(y), batch, shuffle=False, verbose=0, **options)

    def distributed():
        own = easyscale.shard(jnp.asarray(x), jnp.asarray(y))
        return train(*own, easyscale.local_batch(24), callbacks=[Distribute()])

    return assert_as_one_process(distributed, lambda: train(x, y, 24))


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


def check_two_fits_and_a_second_compile():
    x, y = digits(98)

    def train(x, y, batch, **options):
        model = classify(conv_net(), sgd())
        for rate in (0.1, 0.05):
            model.fit(x, y, batch, epochs=2, shuffle=False, verbose=0, **options)
            model.optimizer.learning_rate = rate
        classify(model, keras.optimizers.Adam())
        model.fit(x, y, batch, shuffle=False, verbose=0, **options)
        return model

    def distributed():
        return train(*easyscale.shard(x, y), easyscale.local_batch(24), callbacks=[Distribute()])

    return assert_as_one_process(distributed, lambda: train(x, y, 24))


def check_one_rank_without_data_in_the_last_steps():
    return equal(dense(sgd), digits(24 * 2 + 1), global_batch=24, epochs=3)


class Batches(keras.utils.PyDataset):
    """Batches of the digits."""

    def __init__(self, x, y, size):
        super().__init__()
        self.x, self.y, self.size = x, y, size

    def __len__(self):
        return -(-len(self.x) // self.size)

    def __getitem__(self, index):
        rows = slice(index * self.size, (index + 1) * self.size)
        return self.x[rows], self.y[rows]


def check_a_py_dataset():
    x, y = digits(98)

    def train(data, **options):
        model = dense(sgd)()
        return model, model.fit(data, epochs=2, shuffle=False, verbose=0, **options)

    def distributed():
        return train(easyscale.shard(Batches(x, y, 24)), callbacks=[Distribute()])

    return assert_as_one_process(distributed, lambda: train(Batches(x, y, 24)))


def check_moving_averages_are_the_mean_over_ranks_by_samples():
    layers = [keras.Input((1,)), keras.layers.BatchNormalization(momentum=0.5), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile("sgd", "mse")
    x = np.full((comm.rank + 1, 1), float(comm.rank), "float32")  # rank r has r + 1 samples of r
    model.fit(x, x, batch_size=8, verbose=0, callbacks=[Distribute()])
    samples = np.arange(1, comm.size + 1)
    mean = (samples * (samples - 1)).sum() / samples.sum()
    np.testing.assert_allclose(np.array(layers[1].moving_mean), [0.5 * mean], rtol=1e-6)


def check_compiling_stays_on():
    model = classify(conv_net(), sgd(), jit_compile=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", easyscale.EasyScaleWarning)
        _fit_a_little(model)
    assert model.jit_compile


def check_without_compiling():
    return equal(dense(sgd, run_eagerly=True), epochs=1)


def _fit_a_little(model):
    x, y = easyscale.shard(*digits(24))
    model.fit(x, y, batch_size=4, verbose=0, callbacks=[Distribute()])
