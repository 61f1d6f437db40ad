"""Checks with parameter servers that wait for all workers: the steps of one process, and every rank the same."""

import functools

import keras
import numpy as np
import tensorflow as tf
from models import assert_equal_ranks, classify, conv_net, dense, digits, equal

import easyscale

comm = easyscale.communicator.get()
equal = functools.partial(equal, exchanges=["parameter_server"])


def check_workers_and_servers_are_told_apart():
    assert easyscale.size() == comm.size - comm.servers
    assert comm.is_server == (easyscale.rank() >= easyscale.size())
    x = np.arange(10 * easyscale.size())
    np.testing.assert_array_equal(easyscale.shard(x), x[easyscale.rank() % easyscale.size() :: easyscale.size()])
    whole = easyscale.unshard(easyscale.shard(x))
    np.testing.assert_array_equal(whole, x)


def check_adam_with_validation():
    return equal(lambda: classify(conv_net(), keras.optimizers.Adam()), validates=True)


def check_momentum_with_clipping_by_the_norm_of_all_gradients():
    return equal(dense(lambda: keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.1)))


def check_gradients_that_leave_in_buckets():
    return equal(dense(keras.optimizers.Adam), distribute={"bucket_bytes": 512})


def check_gradient_accumulation():
    return equal(dense(lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)))


def check_an_optimizer_that_looks_at_whole_weights():
    return equal(dense(keras.optimizers.Lamb))


def check_sparse_gradients():
    def build():
        layers = [keras.Input((6,), dtype="int32"), keras.layers.Embedding(300, 4), keras.layers.Flatten()]
        return classify(keras.Sequential([*layers, keras.layers.Dense(10)]), keras.optimizers.SGD(0.1))

    generator = np.random.default_rng(0)
    return equal(build, (generator.integers(0, 300, (98, 6)), generator.integers(0, 10, 98)))


def check_batch_normalization_over_all_workers():
    def build():
        layers = [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(8)]
        layers += [keras.layers.BatchNormalization(synchronized=True), keras.layers.Dense(10)]
        return classify(keras.Sequential(layers), keras.optimizers.SGD(0.1))

    return equal(build, validates=True)


def check_a_model_that_its_first_step_builds():
    def build():
        return classify(keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(10)]), keras.optimizers.Adam())

    return equal(build)


def check_validation_by_whole_data_is_the_same_on_servers():
    """A server sees none of it, and has what the workers found: else its `EarlyStopping` would end their training."""
    x, y = digits(96)
    model = classify(conv_net(), keras.optimizers.SGD(0.01))
    stops = keras.callbacks.EarlyStopping(patience=1)
    callbacks = [easyscale.callbacks.Distribute("parameter_server"), stops]
    options = {"batch_size": 8, "verbose": 0, "epochs": 4, "validation_data": (x, y), "callbacks": callbacks}
    history = model.fit(*easyscale.shard(x, y), **options).history
    everyones = comm.all_gather_object({name: list(map(float, values)) for name, values in history.items()})
    assert all(theirs == everyones[0] for theirs in everyones)
    assert len(history["val_loss"]) == 4
    alone = model.evaluate(x, y, verbose=0)
    np.testing.assert_allclose([history["val_loss"][-1], history["val_accuracy"][-1]], alone, rtol=1e-4)


def check_the_code_after_fit_works_on_servers():
    x, y = digits(96)
    model = classify(conv_net(), keras.optimizers.Adam())
    options = {"batch_size": 8, "verbose": 0, "callbacks": [easyscale.callbacks.Distribute("parameter_server")]}
    history = model.fit(*easyscale.shard(x, y), epochs=2, validation_data=easyscale.shard(x, y), **options).history
    everyones = comm.all_gather_object({name: [float(value) for value in values] for name, values in history.items()})
    assert all(theirs == everyones[0] for theirs in everyones)
    together = model.evaluate(*easyscale.shard(x, y), **options)
    alone = model.evaluate(x, y, verbose=0)
    np.testing.assert_allclose(together, alone, rtol=1e-4)
    assert len({str(one) for one in comm.all_gather_object([float(value) for value in together])}) == 1
    assert_equal_ranks(model.get_weights())
    model.fit(*easyscale.shard(x, y), **options)
    assert int(model.optimizer.iterations) == 3 * len(easyscale.shard(x)) // 8
    assert_equal_ranks([*model.get_weights(), *map(np.array, model.optimizer.variables)])


def _assert_near(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def check_a_batch_that_is_trained_after_fit_is_of_the_workers_alone():
    x, y = digits(24)
    model, stock = dense(lambda: keras.optimizers.SGD(0.1))(), dense(lambda: keras.optimizers.SGD(0.1))()
    callbacks = [easyscale.callbacks.Distribute("parameter_server")]
    model.fit(*easyscale.shard(x, y), batch_size=4, verbose=0, callbacks=callbacks)
    stock.set_weights(model.get_weights())
    model.train_on_batch(*easyscale.shard(x, y))
    stock.train_on_batch(x, y)
    _assert_near(model.get_weights(), stock.get_weights())
    assert_equal_ranks(model.get_weights())


def check_a_loop_of_ones_own_is_of_the_workers_alone():
    def train(model, optimizer, x, y):
        for _ in range(3):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, model(x), from_logits=True))
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    x, y = digits(24)
    build = dense(lambda: keras.optimizers.SGD(0.1))
    keras.utils.set_random_seed(1)
    model, stock = build(), build()
    stock.set_weights(model.get_weights())
    inner = keras.optimizers.SGD(0.1)
    train(model, easyscale.DistributedOptimizer(inner, "parameter_server"), *easyscale.shard(x, y))
    train(stock, keras.optimizers.SGD(0.1), x, y)
    _assert_near(model.get_weights(), stock.get_weights())
    assert_equal_ranks(model.get_weights())


def check_only_servers_own_the_state():
    x, y = digits(96)
    owned = []

    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            owned.append(sum(int(np.prod(one.shape)) for one in self.model.optimizer.updates.chosen.variables))

    model = classify(conv_net(), keras.optimizers.Adam())
    callbacks = [easyscale.callbacks.Distribute("parameter_server"), Look()]
    model.fit(*easyscale.shard(x, y), batch_size=8, verbose=0, callbacks=callbacks)
    assert all(count == 2 for count in owned), owned  # steps so far and the learning rate
    assert bool(owned) != comm.is_server  # who serves makes no steps
