"""What Keras users do, done by several processes: models, data, training loops."""

import keras
import numpy as np
import tensorflow as tf
from models import assert_as_one_process, assert_equal_ranks, classify, conv_net, different_start, digits

import easyscale
from easyscale.callbacks import Distribute

GLOBAL_BATCH = 24


def _sgd(rate=0.1):
    return keras.optimizers.SGD(rate, momentum=0.9)


def _equal(build, data=digits, epochs=2, **fit_options):
    """`build` returns a compiled model."""
    x, y = data()

    def distributed():
        model = build()
        xs, ys = easyscale.shard(x, y)
        batch = easyscale.local_batch(GLOBAL_BATCH)
        options = {"epochs": epochs, "shuffle": False, "verbose": 0, "callbacks": [Distribute()], **fit_options}
        return model, model.fit(xs, ys, batch_size=batch, **options)

    def single():
        model = build()
        options = {"epochs": epochs, "shuffle": False, "verbose": 0, **fit_options}
        return model, model.fit(x, y, batch_size=GLOBAL_BATCH, **options)

    assert_as_one_process(distributed, single)


# Models


def check_a_model_that_is_built_by_its_first_batch():
    def build():
        layers = [keras.layers.Flatten(), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(10)]
        return classify(keras.Sequential(layers), _sgd())

    _equal(build)


def check_a_model_that_is_built_by_its_first_batch_and_runs_eagerly():
    def build():
        return classify(keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(10)]), _sgd(), run_eagerly=True)

    _equal(build, data=lambda: digits(48))


def _words():
    generator = np.random.default_rng(0)
    return generator.integers(0, 50, (240, 6)), generator.integers(0, 10, 240)


def check_embeddings():
    def build():
        layers = [keras.Input((6,), dtype="int32"), keras.layers.Embedding(50, 8), keras.layers.Flatten()]
        return classify(keras.Sequential([*layers, keras.layers.Dense(10)]), _sgd())

    _equal(build, data=_words)


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

    _equal(lambda: classify(Partly(), _sgd()))


def check_batch_normalization_trains_and_keeps_ranks_equal_in_what_is_trained():
    different_start()
    layers = [keras.Input((8, 8, 1)), keras.layers.Conv2D(4, 3), keras.layers.BatchNormalization()]
    model = classify(keras.Sequential([*layers, keras.layers.Flatten(), keras.layers.Dense(10)]), _sgd())
    xs, ys = easyscale.shard(*digits(960))
    history = model.fit(xs, ys, batch_size=16, epochs=3, callbacks=[Distribute()], verbose=0)
    assert_equal_ranks([variable.numpy() for variable in model.trainable_variables])
    assert history.history["accuracy"][-1] > 0.6


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

    _equal(build, data=lambda: ({"a": x, "b": x[::-1].copy()}, {"one": y, "two": (y / 10).astype("float32")}))


def check_mixed_float16():
    def build():
        keras.config.set_dtype_policy("mixed_float16")
        model = conv_net()
        keras.config.set_dtype_policy("float32")
        return classify(model, _sgd(0.01))

    x, y = digits()
    different_start()
    model = build()
    xs, ys = easyscale.shard(x, y)
    model.fit(xs, ys, batch_size=easyscale.local_batch(GLOBAL_BATCH), epochs=2, callbacks=[Distribute()], verbose=0)
    assert isinstance(model.optimizer.inner_optimizer, keras.optimizers.LossScaleOptimizer)
    assert_equal_ranks([variable.numpy() for variable in model.weights])


def check_a_distributed_optimizer_inside_a_loss_scale_optimizer_is_turned_inside_out():
    different_start()
    keras.config.set_dtype_policy("mixed_float16")
    model = conv_net()
    keras.config.set_dtype_policy("float32")
    classify(model, easyscale.DistributedOptimizer(_sgd(0.01), "ring"))
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    xs, ys = easyscale.shard(*digits())
    model.fit(xs, ys, batch_size=8, epochs=1, callbacks=[Distribute()], verbose=0)
    assert isinstance(model.optimizer, easyscale.DistributedOptimizer)
    assert isinstance(model.optimizer.inner_optimizer, keras.optimizers.LossScaleOptimizer)
    assert_equal_ranks([variable.numpy() for variable in model.weights])


# Training loops


def check_steps_per_execution():
    _equal(lambda: classify(conv_net(), _sgd(), steps_per_execution=4))


def check_jit_compile_is_turned_off():
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", easyscale.EasyScaleWarning)
        _equal(lambda: classify(conv_net(), _sgd(), jit_compile=True))


def check_learning_rate_schedules_and_schedulers():
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 5, 0.9)
    _equal(lambda: classify(conv_net(), keras.optimizers.SGD(schedule, momentum=0.9)))

    scheduler = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)
    x, y = digits()

    def distributed():
        model = classify(conv_net(), _sgd())
        xs, ys = easyscale.shard(x, y)
        callbacks = [scheduler, Distribute()]
        batch = easyscale.local_batch(GLOBAL_BATCH)
        return model, model.fit(xs, ys, batch_size=batch, epochs=3, shuffle=False, verbose=0, callbacks=callbacks)

    def single():
        model = classify(conv_net(), _sgd())
        options = {"epochs": 3, "shuffle": False, "verbose": 0, "callbacks": [scheduler]}
        return model, model.fit(x, y, batch_size=GLOBAL_BATCH, **options)

    assert_as_one_process(distributed, single)


def check_clipping_weight_decay_moving_average_and_accumulation_see_the_mean():
    for options in (
        {"clipnorm": 0.1},
        {"global_clipnorm": 0.1},
        {"clipvalue": 0.01},
        {"weight_decay": 0.01},
        {"use_ema": True, "ema_momentum": 0.9, "ema_overwrite_frequency": 5},
        {"loss_scale_factor": 128.0},
        {"gradient_accumulation_steps": 2},
    ):
        _equal(lambda options=options: classify(conv_net(), keras.optimizers.SGD(0.1, momentum=0.9, **options)))


class OwnStep(keras.Model):
    """The pattern of Keras's guide: a train_step of one's own."""

    def __init__(self):
        super().__init__()
        self.net = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(10)])
        self.mean_loss = keras.metrics.Mean(name="loss")

    def call(self, x):
        return self.net(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, self(x, training=True), True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.mean_loss.update_state(loss, sample_weight=tf.shape(x)[0])
        return {"loss": self.mean_loss.result()}

    @property
    def metrics(self):
        return [self.mean_loss]


def check_a_train_step_of_ones_own():
    def build():
        model = OwnStep()
        model.compile(_sgd())
        return model

    _equal(build)


class TwoNets(keras.Model):
    """Two networks, each with an optimizer of its own, as in a GAN; returns numbers, not metrics."""

    def __init__(self):
        super().__init__()
        self.a = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(10)])
        self.b = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(10)])

    def compile(self, a_optimizer, b_optimizer):
        super().compile()
        self.a_optimizer, self.b_optimizer = a_optimizer, b_optimizer

    def call(self, x):
        return self.a(x) + self.b(x)

    def train_step(self, data):
        x, y = data
        losses = {}
        for name, net, optimizer in (("a", self.a, self.a_optimizer), ("b", self.b, self.b_optimizer)):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, net(x, training=True), True))
            gradients = tape.gradient(loss, net.trainable_variables)
            optimizer.apply(gradients, net.trainable_variables)
            losses[name] = loss
        return losses


def check_two_optimizers_and_uneven_data():
    def build():
        model = TwoNets()
        model.compile(_sgd(), keras.optimizers.Adam(0.01))
        return model

    x, y = digits(GLOBAL_BATCH * 5 + 1)

    def distributed():
        model = build()
        xs, ys = easyscale.shard(x, y)
        batch = easyscale.local_batch(GLOBAL_BATCH)
        model.fit(xs, ys, batch_size=batch, epochs=2, shuffle=False, verbose=0, callbacks=[Distribute("tree")])
        assert isinstance(model.a_optimizer, easyscale.DistributedOptimizer)
        return model

    def single():
        model = build()
        model.fit(x, y, batch_size=GLOBAL_BATCH, epochs=2, shuffle=False, verbose=0)
        return model

    assert_as_one_process(distributed, single)


def check_a_training_loop_of_ones_own():
    x, y = digits()
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def train(model, optimizer, x, y, batch):
        @tf.function
        def step(x, y):
            with tf.GradientTape() as tape:
                loss = loss_of(y, model(x, training=True))
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

        for one in tf.data.Dataset.from_tensor_slices((x, y)).batch(batch):
            step(*one)
        return model

    def distributed():
        xs, ys = easyscale.shard(x, y)
        optimizer = easyscale.DistributedOptimizer(_sgd(), "ring")
        return train(conv_net(), optimizer, xs, ys, easyscale.local_batch(GLOBAL_BATCH))

    assert_as_one_process(distributed, lambda: train(conv_net(), _sgd(), x, y, GLOBAL_BATCH))


def check_a_second_fit_and_a_second_compile():
    x, y = digits()

    exchanges = iter(["ring", "tree", None, "ring", None])  # each fit() may have another

    def train(x, y, batch, callbacks):
        model = classify(conv_net(), _sgd())
        for rate in (0.1, 0.01):
            options = {"batch_size": batch, "shuffle": False, "verbose": 0}
            model.fit(x, y, callbacks=callbacks(), **options)
            model.fit(x, y, callbacks=callbacks(), initial_epoch=1, epochs=3, **options)
            classify(model, _sgd(rate))
        model.fit(x, y, callbacks=callbacks(), **options)
        return model

    def distributed():
        return train(*easyscale.shard(x, y), easyscale.local_batch(GLOBAL_BATCH), lambda: [Distribute(next(exchanges))])

    assert_as_one_process(distributed, lambda: train(x, y, GLOBAL_BATCH, list))


def check_an_optimizer_wrapped_by_hand():
    x, y = digits()

    def distributed():
        model = classify(conv_net(), easyscale.DistributedOptimizer(_sgd(), "tree"))
        optimizer = model.optimizer
        xs, ys = easyscale.shard(x, y)
        batch = easyscale.local_batch(GLOBAL_BATCH)
        model.fit(xs, ys, batch_size=batch, shuffle=False, verbose=0, callbacks=[Distribute()])
        assert model.optimizer is optimizer and int(optimizer.iterations) == 10
        optimizer.learning_rate = 0.5
        assert float(optimizer.inner_optimizer.learning_rate) == 0.5
        return model

    def single():
        model = classify(conv_net(), _sgd())
        model.fit(x, y, batch_size=GLOBAL_BATCH, shuffle=False, verbose=0)
        return model

    assert_as_one_process(distributed, single)


def check_ranks_start_with_the_chiefs_optimizer_state():
    x, y = digits()

    def train(model, x, y, batch, **options):
        model.fit(x, y, batch_size=batch, epochs=1, shuffle=False, verbose=0, **options)
        return model

    def distributed():
        model = classify(conv_net(), keras.optimizers.Adam(0.01))
        if easyscale.is_chief():  # as if it had loaded a checkpoint
            train(model, x, y, GLOBAL_BATCH)
        batch = easyscale.local_batch(GLOBAL_BATCH)
        train(model, *easyscale.shard(x, y), batch, callbacks=[Distribute()])
        assert int(model.optimizer.iterations) == 20
        return model

    def single():
        model = classify(conv_net(), keras.optimizers.Adam(0.01))
        return train(train(model, x, y, GLOBAL_BATCH), x, y, GLOBAL_BATCH)

    assert_as_one_process(distributed, single)


# Data


def _fit_datasets(make, take, **options):
    """`make(x, y)` returns the whole data, `take(it)` a worker's part of it, both batched."""
    x, y = digits(GLOBAL_BATCH * 6 + 5)

    def distributed():
        model = classify(conv_net(), _sgd())
        return model, model.fit(take(make(x, y)), epochs=2, verbose=0, callbacks=[Distribute()], **options)

    def single():
        model = classify(conv_net(), _sgd())
        data = make(x, y)
        if isinstance(data, tf.data.Dataset) and data.element_spec[1].shape.rank == 0:
            data = data.batch(GLOBAL_BATCH)
        return model, model.fit(data, epochs=2, verbose=0, **options)

    assert_as_one_process(distributed, single)


def check_a_batched_dataset():
    _fit_datasets(lambda x, y: tf.data.Dataset.from_tensor_slices((x, y)).batch(GLOBAL_BATCH), easyscale.shard)


def check_an_unbatched_dataset():
    _fit_datasets(
        lambda x, y: tf.data.Dataset.from_tensor_slices((x, y)),
        lambda data: easyscale.shard(data).batch(easyscale.local_batch(GLOBAL_BATCH)),
    )


class _Batches(keras.utils.PyDataset):
    def __init__(self, x, y):
        super().__init__()
        self.x, self.y = x, y

    @property
    def num_batches(self):
        return -(-len(self.x) // GLOBAL_BATCH)

    def __getitem__(self, index):
        rows = slice(index * GLOBAL_BATCH, (index + 1) * GLOBAL_BATCH)
        return self.x[rows], self.y[rows]


def check_a_py_dataset():
    _fit_datasets(_Batches, easyscale.shard, shuffle=False)


def check_generators_of_different_lengths():
    x, y = digits(GLOBAL_BATCH * 6 + 1)

    def batches(x, y, batch):
        for start in range(0, len(x), batch):
            yield x[start : start + batch], y[start : start + batch]

    def distributed():
        model = classify(conv_net(), _sgd())
        xs, ys = easyscale.shard(x, y)
        data = batches(xs, ys, easyscale.local_batch(GLOBAL_BATCH))
        return model, model.fit(data, verbose=0, callbacks=[Distribute()])

    def single():
        model = classify(conv_net(), _sgd())
        return model, model.fit(batches(x, y, GLOBAL_BATCH), verbose=0)

    assert_as_one_process(distributed, single)


# Metrics and callbacks


class _Recorder(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.epochs, self.tests = [], []

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append(dict(logs))

    def on_test_end(self, logs=None):
        self.tests.append(dict(logs))


def check_every_callback_sees_the_metrics_of_all_ranks_wherever_it_stands():
    different_start()
    x, y = digits(GLOBAL_BATCH * 5 + 1)
    model = classify(conv_net(), _sgd())
    xs, ys = easyscale.shard(x, y)
    before, after = _Recorder(), _Recorder()
    history = model.fit(
        xs,
        ys,
        batch_size=easyscale.local_batch(GLOBAL_BATCH),
        epochs=2,
        verbose=0,
        validation_data=(xs, ys),
        callbacks=[before, Distribute(), after],
    )
    assert before.epochs == after.epochs and before.tests == after.tests
    assert [logs["val_loss"] for logs in before.epochs] == history.history["val_loss"]
    assert set(before.epochs[0]) == {"accuracy", "loss", "val_accuracy", "val_loss"}
    values = np.array([list(logs.values()) for logs in before.epochs])
    assert_equal_ranks([values])
    # val_accuracy is a count of right answers over all samples of all ranks
    right = keras.ops.convert_to_numpy(model(x)).argmax(axis=1) == y
    np.testing.assert_allclose(history.history["val_accuracy"][-1], right.mean(), atol=1e-6)


def check_only_the_chief_shows_a_progress_bar():
    import contextlib
    import io

    xs, ys = easyscale.shard(*digits())
    model = classify(conv_net(), _sgd())
    with contextlib.redirect_stdout(io.StringIO()) as out:
        model.fit(xs, ys, batch_size=8, epochs=1, callbacks=[Distribute()], verbose=2)
    assert ("accuracy" in out.getvalue()) == easyscale.is_chief()


class Evaluator(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if easyscale.is_chief():
            self.model.evaluate(*digits(48), verbose=0)

    def on_train_batch_end(self, batch, logs=None):
        if batch == 3 and easyscale.is_chief():
            self.model.evaluate(*digits(48), verbose=0)


def check_the_chief_may_evaluate_within_fit():
    xs, ys = easyscale.shard(*digits())
    options = {"epochs": 2, "shuffle": False, "verbose": 0, "validation_data": (xs, ys)}
    different_start()
    model = classify(conv_net(), _sgd())
    history = model.fit(xs, ys, batch_size=8, callbacks=[Distribute(), Evaluator()], **options)
    assert_equal_ranks(model.get_weights())
    assert_equal_ranks([np.array(history.history["val_loss"])])


def check_a_stop_within_an_epoch_on_one_rank_stops_all_after_it():
    different_start()
    x, y = digits(GLOBAL_BATCH * 4)
    x[-1] = np.nan  # the last rank's, in its last batch
    xs, ys = easyscale.shard(x, y)
    model = classify(conv_net(), _sgd())
    callbacks = [keras.callbacks.TerminateOnNaN(), Distribute()]
    batch = easyscale.local_batch(GLOBAL_BATCH)
    history = model.fit(xs, ys, batch_size=batch, epochs=3, shuffle=False, callbacks=callbacks, verbose=0)
    assert len(history.history["loss"]) == 1


def check_a_loss_that_is_no_mean_is_warned_of():
    import pytest

    xs, ys = easyscale.shard(*digits())
    model = conv_net()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum"))
    with pytest.warns(easyscale.EasyScaleWarning, match="should be the mean over its samples.*reduction='sum'"):
        model.fit(xs, ys, batch_size=8, callbacks=[Distribute()], verbose=0)


def check_train_on_batch_with_an_optimizer_wrapped_by_hand_starts_equal():
    different_start()
    xs, ys = easyscale.shard(*digits(48))
    model = classify(conv_net(), easyscale.DistributedOptimizer(_sgd(), "tree"))
    for _ in range(3):
        model.train_on_batch(xs, ys)
    assert_equal_ranks(model.get_weights())


def check_evaluating_after_fit_needs_no_other_rank():
    xs, ys = easyscale.shard(*digits())
    model = classify(conv_net(), _sgd())
    model.fit(xs, ys, batch_size=8, epochs=1, callbacks=[Distribute()], verbose=0)
    if easyscale.is_chief():
        model.evaluate(xs, ys, verbose=0)
        model.predict(xs, verbose=0)
