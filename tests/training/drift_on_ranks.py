"""Ranks that drift apart are told so: by how much, in which weight, after which step."""

import contextlib
import io
import re
import tempfile
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from covering import full
from models import assert_equal_ranks, classify, conv_net, different_start, digits

import easyscale
from easyscale.callbacks import Distribute

comm = easyscale.communicator.get()
LAST = comm.size - 1


def _fit(callbacks=(), model=None, data=None, batch=8, **options):
    different_start()
    model = model or classify(conv_net(), "sgd")
    xs, ys = data or easyscale.shard(*digits(8 * comm.size * 10))
    options = {"shuffle": False, "verbose": 0, **options}
    # Where each rank updates its part, what another has assigned to that part does not last.
    distribute = Distribute(**{"update": "replicated", **options.pop("distribute", {})})
    return model.fit(xs, ys, batch_size=batch, callbacks=[*callbacks, distribute], **options)


class Assign(keras.callbacks.Callback):
    """Changes a weight on one rank alone."""

    def __init__(self, rank, batch, epoch=0, index=2, by=0.25):
        super().__init__()
        self.rank, self.batch, self.epoch, self.index, self.by = rank, batch, epoch, index, by
        self.now = -1

    def on_epoch_begin(self, epoch, logs=None):
        self.now = epoch

    def on_train_batch_end(self, batch, logs=None):
        if (self.now, batch, comm.rank) == (self.epoch, self.batch, self.rank):
            weight = self.model.trainable_variables[self.index]
            value = weight.numpy()
            value.flat[0] += self.by
            weight.assign(value)


def _desync(match, **options):
    with pytest.raises(easyscale.DesyncError) as raised:
        _fit(**options)
    message = str(raised.value)
    assert "\n" not in message
    assert re.search(match, message), message
    assert len(set(comm.all_gather_object(message))) == 1, "ranks say different things"


@full
def check_a_weight_assigned_on_one_rank_is_named_at_the_next_comparison():
    _desync(
        rf"Received: `model/dense(_\d+)?/kernel` (and \d more )?of rank {LAST} differs? from rank 0 "
        r"after step 6 \(max 2.5e-01\)",
        callbacks=[Assign(LAST, batch=4)],
        distribute={"check_every": 3},
    )


@full
def check_a_weight_assigned_on_one_rank_is_that_of_its_owner_after_the_next_step():
    model = classify(conv_net(), "sgd")
    _fit(model=model, callbacks=[Assign(LAST, batch=4)], distribute={"check_every": 3, "update": "sharded"})
    assert_equal_ranks(model.get_weights())


@full
def check_a_weight_assigned_after_the_last_step_is_found_where_each_rank_updates_its_part():
    _desync(r"of rank \d", callbacks=[Assign(LAST, batch=9)], distribute={"update": "sharded"})


@full
def check_a_weight_assigned_on_the_chief_is_found_at_the_end_of_fit():
    others = "s 1, 2" if comm.size == 3 else " 1"
    _desync(
        rf"`model/conv2d(_\d+)?/kernel` .*of rank{others} differ.* after step 10 \(max 1.0e-03\)",
        callbacks=[Assign(0, batch=9, index=0, by=1e-3)],
    )


@full
def check_a_rank_without_data_compares_as_well():
    x, y = digits(8 * comm.size * 10)
    x, y = easyscale.shard(x, y)
    if comm.rank == 1:
        x, y = x[:8], y[:8]  # one batch
    _desync(r"of rank 1 .* after step 4 ", callbacks=[Assign(1, batch=0)], data=(x, y), distribute={"check_every": 4})


@full
def check_equal_ranks_are_left_alone():
    history = _fit(distribute={"check_every": 1}, epochs=2, steps_per_epoch=None)
    assert len(history.history["loss"]) == 2


class Bypassing(keras.Model):
    def __init__(self):
        super().__init__()
        self.flatten, self.dense = keras.layers.Flatten(), keras.layers.Dense(10)

    def call(self, x):
        return self.dense(self.flatten(x))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, self(x, training=True), True))
        for gradient, variable in zip(
            tape.gradient(loss, self.trainable_variables), self.trainable_variables, strict=True
        ):
            variable.assign_sub(0.1 * gradient)
        return {"loss": loss}


def check_a_train_step_that_bypasses_the_optimizer_is_an_error_after_the_first_step():
    model = Bypassing()
    model.compile("sgd")
    _desync(
        "a step must exchange its gradients. Received: a first step of Bypassing that has changed weights without an "
        "exchange. Let `train_step` call `self.optimizer.apply",
        model=model,
    )


class Accumulating(keras.Model):
    """Applies its gradients in every second step only: that is no bypassing."""

    def __init__(self):
        super().__init__()
        self.flatten, self.dense = keras.layers.Flatten(), keras.layers.Dense(10)
        self.step = self.add_weight(shape=(), dtype="int32", trainable=False, name="step")

    call = Bypassing.call

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, self(x, training=True), True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.step.assign(self.step + 1)

        def apply():
            self.optimizer.apply(gradients, self.trainable_variables)
            return 0

        tf.cond(tf.equal(self.step % 2, 0), apply, lambda: 0)
        return {"loss": loss}


@full
def check_a_train_step_that_applies_its_gradients_in_some_steps_only_is_right():
    model = Accumulating()
    model.compile("sgd")
    model(digits(1)[0])
    model.optimizer.build(model.trainable_variables)
    _fit(model=model)


class Hidden(Bypassing):
    """Its second optimizer is in a tuple, where nobody looks."""

    def __init__(self):
        super().__init__()
        self.hidden = (keras.optimizers.SGD(0.1),)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, self(x, training=True), True))
        kernel, bias = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply([kernel], self.trainable_variables[:1])
        self.hidden[0].apply([bias], self.trainable_variables[1:])
        return {"loss": loss}


def check_an_optimizer_that_is_not_distributed_is_found_after_the_first_step():
    model = Hidden()
    model.compile("sgd")
    model(digits(1)[0])
    model.hidden[0].build(model.trainable_variables[1:])
    model.optimizer.build(model.trainable_variables[:1])
    _desync("`hidden/dense.*/bias` .* after step 1 .*an optimizer that is not an attribute", model=model)


def _warnings(**options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _fit(**options)
    return [str(one.message) for one in caught if issubclass(one.category, easyscale.EasyScaleWarning)]


def check_the_same_data_on_all_ranks_is_warned_of_once_by_the_chief():
    found = _warnings(data=digits(96), epochs=2)
    assert len(found) == easyscale.is_chief()
    if found:
        assert "the same first batch in all" in found[0] and "easyscale.shard(x, y)" in found[0]


@full
def check_divided_data_is_not_warned_of():
    assert _warnings() == []
    assert _warnings(data=easyscale.shard(np.ones((96, 8, 8, 1)), np.ones(96, "int32"))) == []  # too plain to tell


def check_the_size_of_a_step_is_said_where_it_may_be_another_than_is_meant():
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        _fit(verbose=2)
    size = f"each step has {8 * comm.size} samples, 8 of each of {comm.size} processes. "
    assert (size in said.getvalue()) == easyscale.is_chief()


@full
def check_different_data_on_ranks_is_not_warned_of():
    x, y = digits(96)
    assert _warnings(data=(x[::-1].copy(), y[::-1].copy()) if comm.rank == 1 else (x, y)) == []


def _not_finite(run):
    """Return what was said of losses, over all ranks."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    mine = [str(one.message) for one in caught if "losses must be finite" in str(one.message)]
    return [(rank, message) for rank, said in enumerate(comm.all_gather_object(mine)) for message in said]


@full
def check_the_rank_whose_loss_is_first_not_finite_is_said_once_by_the_chief():
    x, y = easyscale.shard(*digits(8 * comm.size * 10))
    if comm.rank == LAST:
        x[8 * 3 + 1] = np.nan
    ((rank, message),) = _not_finite(lambda: _fit(data=(x, y), epochs=2))
    assert rank == 0
    assert message.startswith(
        f"losses must be finite. Received: NaN or infinity in step 4, of rank {LAST} of {comm.size}: its data are"
    )


def check_losses_that_are_not_finite_anywhere_are_of_all_ranks():
    model = classify(conv_net(), keras.optimizers.SGD(1e30))
    ((rank, message),) = _not_finite(lambda: _fit(model=model))
    assert rank == 0
    assert f"of all {comm.size} ranks at once: their weights, or the last gradients of one, are not finite" in message


@full
def check_nan_in_data_that_no_loss_sees_is_left_alone():
    x, y = easyscale.shard(*digits(8 * comm.size * 4))
    x[:, 0, 0] = np.nan
    model = keras.Sequential(
        [keras.Input((8, 8, 1)), keras.layers.Lambda(tf.math.multiply_no_nan, arguments={"y": 0.0})]
    )
    model = keras.Sequential([*model.layers, keras.layers.Flatten(), keras.layers.Dense(10)])
    assert _not_finite(lambda: _fit(model=classify(model, "sgd"), data=(x, y))) == []


def _refused(message, model, **options):
    with pytest.raises(easyscale.DesyncError, match=message):
        model.fit(*digits(24), batch_size=8, verbose=0, callbacks=[easyscale.callbacks.Distribute(**options)])
    comm.barrier()


def check_layers_that_only_compute_in_another_way_are_told_of():
    is_last = comm.rank == comm.size - 1
    policy = "mixed_bfloat16" if is_last else "float32"
    dense = keras.layers.Dense(10, dtype=policy, name="head")
    model = classify(keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), dense]), "sgd")
    _refused(
        f"'head' with compute_dtype=float32 on rank 0, 'head' with compute_dtype=bfloat16 on rank {comm.size - 1}",
        model,
    )
    dense = keras.layers.Dense(10, name="first", trainable=not is_last)
    layers = [keras.Input((8, 8, 1)), keras.layers.Flatten(), dense, keras.layers.Dense(10)]
    model = classify(keras.Sequential(layers), "sgd")
    _refused(f"'first' with trainable=True on rank 0, 'first' with trainable=False on rank {comm.size - 1}", model)


def check_checkpoints_of_some_ranks_only_are_told_of():
    with tempfile.TemporaryDirectory() as folder:
        options = {"checkpoint": folder, "every": 3} if comm.rank == comm.size - 1 else {}
        message = f"checkpoint=None on rank 0, checkpoint=every 3 steps on rank {comm.size - 1}. Run one script"
        model = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(10)])
        _refused(message, classify(model, "sgd"), **options)
