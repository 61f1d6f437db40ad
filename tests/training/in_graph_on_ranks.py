"""Several devices in a process, and several such processes: what `equality_on_ranks.py` does not have."""

import keras
import numpy as np
import tensorflow as tf
from folders import done_with, new_folder
from models import classify, dense, digits, in_scope, sgd

import easyscale
from easyscale.callbacks import Distribute

UNEVEN = digits(4 * 24 + 2)
DEVICES = len(tf.config.list_logical_devices("CPU"))


def _in_scope(build):
    keras.utils.set_random_seed(1)
    return in_scope(build)


def _fit(model, data=UNEVEN, callbacks=(), **options):
    x, y = easyscale.shard(*data)
    options = {"batch_size": easyscale.local_batch(24), "verbose": 0, **options}
    return model.fit(x, y, callbacks=[*callbacks, Distribute()], **options)


def check_the_number_of_workers_is_that_of_devices():
    from easyscale import communicator

    processes = communicator.get().size
    assert easyscale.size() == processes * DEVICES
    assert easyscale.rank() == communicator.get().rank * DEVICES
    assert easyscale.local_batch(24) * processes == 24
    assert len(easyscale.shard(np.arange(24))) * processes == 24


def _copies(model, variable):
    return [copy.numpy() for _, copy in model.optimizer.workers.replicas.copies_of(variable)]


def check_a_dataset_whose_elements_have_the_parts_of_all_devices():
    """TensorFlow's `MultiDeviceIterator` ended 2 of 3 runs of some hundred short epochs by signal 11."""
    whole = [np.arange(7), np.arange(7 + 1), np.arange(DEVICES - 1)]
    with easyscale.scope():
        strategy = tf.distribute.get_strategy()
    for batch in (*whole, tf.ragged.constant([[1], [2, 3], []] * 3), tf.sparse.from_dense(np.eye(7)), {"x": whole[0]}):
        divided = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensors(batch))
        assert isinstance(divided, tf.data.Dataset)
        (element,) = divided
        parts = list(strategy.experimental_local_results(element["x"] if isinstance(batch, dict) else element))
        sizes = [int(one.nrows() if isinstance(one, tf.RaggedTensor) else one.shape[0]) for one in parts]
        assert len(parts) == DEVICES and max(sizes) - min(sizes) <= 1, sizes
        together = tf.sparse.concat(0, parts) if isinstance(batch, tf.SparseTensor) else tf.concat(parts, 0)
        plain, again = (
            tf.sparse.to_dense(one) if isinstance(one, tf.SparseTensor) else one
            for one in (batch["x"] if isinstance(batch, dict) else batch, together)
        )
        assert tf.reduce_all(tf.equal(plain, again)), again


def check_many_short_epochs():
    model = _in_scope(dense(sgd))
    _fit(model, epochs=30, validation_data=easyscale.shard(*digits(26)))
    _assert_alike(model)


def check_an_overflow_on_one_device_skips_the_step_on_all():
    x, y = digits(24)
    x = x.copy()
    x[-1] = np.inf  # the last device's of the last process

    def build():
        layers = [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(10)]
        scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=1024.0)
        return classify(keras.Sequential(layers), scaled)

    model = _in_scope(build)
    before = [weight.copy() for weight in model.get_weights()]
    _fit(model, (x, y))
    for weight, first in zip(model.weights, before, strict=True):
        for copy in _copies(model, weight):
            np.testing.assert_array_equal(copy, first)
    assert float(model.optimizer.inner_optimizer.dynamic_scale) == 512


def check_devices_have_random_numbers_of_their_own_and_the_same_weights():

    def build():
        layers = [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dropout(0.5)]
        return classify(keras.Sequential([*layers, keras.layers.Dense(10)]), sgd())

    model = _in_scope(build)
    _fit(model, epochs=2)
    (seed,) = [one for one in model.variables if one.name == "seed_generator_state"]
    states = [copy[0] for copy in _copies(model, seed)]
    assert len(set(states)) == DEVICES, states
    _assert_alike(model)


def check_batch_normalization_moves_alike_on_all_devices():

    def build():
        layers = [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.BatchNormalization()]
        return classify(keras.Sequential([*layers, keras.layers.Dense(10)]), sgd())

    model = _in_scope(build)
    _fit(model, digits(24 + 1))  # in the second batch most devices have no data
    for variable in model.variables:
        for copy in _copies(model, variable):
            assert np.isfinite(copy).all(), variable.path
            np.testing.assert_array_equal(copy, variable.numpy())


def _raised(error, function):
    try:
        function()
    except error as raised:
        return str(raised)
    raise AssertionError(f"no {error.__name__}")


def check_a_batch_that_is_trained_after_fit_is_a_whole_step():
    x, y = digits(15)
    model, stock = _in_scope(dense(lambda: keras.optimizers.SGD(0.1))), dense(lambda: keras.optimizers.SGD(0.1))()
    _fit(model)
    stock.set_weights(model.get_weights())
    model.train_on_batch(x, y)
    stock.train_on_batch(x, y)
    for ours, theirs in zip(model.get_weights(), stock.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


def check_moving_averages_that_a_callback_swaps():
    build = dense(lambda: sgd(use_ema=True, ema_momentum=0.9))
    model, stock = _in_scope(build), build()
    stock.set_weights(model.get_weights())
    _fit(model, callbacks=[keras.callbacks.SwapEMAWeights(True)], epochs=2, shuffle=False)
    stock.fit(
        *UNEVEN, batch_size=24, epochs=2, shuffle=False, verbose=0, callbacks=[keras.callbacks.SwapEMAWeights(True)]
    )
    for ours, theirs in zip(model.get_weights(), stock.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    _assert_alike(model)


def check_an_optimizer_that_was_distributed_by_hand_is_taken():
    model = _in_scope(dense(lambda: easyscale.DistributedOptimizer(sgd())))
    _fit(model)
    _assert_alike(model)


def check_what_cannot_be_in_graph_is_refused():
    def fit(**options):
        _in_scope(dense(sgd)).fit(*digits(24), verbose=0, callbacks=[Distribute(**options)])

    for device in ("/CPU:99", "GPU:0", "abc", 3):
        server = easyscale.exchange.ParameterServer(servers_device=device)
        message = _raised(ValueError, lambda server=server: fit(exchange=server))
        assert message.startswith("`servers_device` must be one of ['/CPU:0', "), message
    message = _raised(ValueError, lambda: fit(replication="between_graph"))
    assert "Received: replication='between_graph'" in message, message


def check_weights_that_differ_between_devices_are_found():
    class Drifting(keras.Sequential):
        def train_step(self, data):
            logs = super().train_step(data)
            self.weights[1].assign_add(tf.reduce_mean(data[0]) * tf.ones(10))  # of each device's own samples
            return logs

    def build():
        layers = [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(10, name="logits")]
        return classify(Drifting(layers), sgd())

    message = _raised(easyscale.DesyncError, lambda: _fit(_in_scope(build)))
    assert message.startswith("all devices must have the same weights. Received: `"), message
    assert "logits/bias` on /CPU:1, which differs from /CPU:0 after step 1" in message, message


def check_devices_start_equal():
    model = _in_scope(dense(sgd))
    _fit(model)
    copies = model.optimizer.workers.replicas.copies_of(model.weights[0])
    copies[-1][1].assign_add(tf.ones_like(copies[-1][1]))
    look = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: _assert_alike(model))
    _fit(model, callbacks=[look])


def _assert_alike(model):
    for weight in model.weights:
        for copy in _copies(model, weight):
            np.testing.assert_array_equal(copy, weight.numpy())


def check_a_model_that_was_built_outside_of_the_scope_is_refused():
    message = _raised(ValueError, lambda: _fit(dense(sgd)()))
    assert "in `with easyscale.scope():`. Received: Sequential" in message, message


def check_eager_steps_predictions_and_a_second_fit():
    x, y = UNEVEN
    model = _in_scope(dense(sgd))
    _fit(model)
    model.run_eagerly = True
    _fit(model)
    model.run_eagerly = False
    _fit(model)
    assert int(model.optimizer.iterations) == 15
    assert model.predict(x, batch_size=10, verbose=0).shape == (98, 10)
    logits = keras.ops.convert_to_numpy(model(x))
    np.testing.assert_allclose(model.predict(x, batch_size=10, verbose=0), logits, atol=1e-5)
    accuracy = (logits.argmax(1) == y).mean()
    np.testing.assert_allclose(model.evaluate(x, y, batch_size=7, verbose=0)[1], accuracy, atol=1e-6)


def check_training_goes_on_from_a_checkpoint_as_if_it_had_not_been_interrupted():
    folder = new_folder()

    def build():
        layers = [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dropout(0.5)]
        layers = [*layers, keras.layers.Dense(10, name="logits")]
        return classify(keras.Sequential(layers, name="model"), keras.optimizers.Adam())

    class Interrupted(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if int(self.model.optimizer.iterations) == 8:
                raise KeyboardInterrupt

    def train(*callbacks, **options):
        x, y = easyscale.shard(*UNEVEN)
        model, distribute = _in_scope(build), Distribute(**options)
        options = {"batch_size": easyscale.local_batch(24), "epochs": 3, "shuffle": False, "verbose": 0}
        model.fit(x, y, callbacks=[distribute, *callbacks], **options)
        return model.get_weights()

    expected = train()
    _raised(KeyboardInterrupt, lambda: train(Interrupted(), checkpoint=folder, every=2))
    for ours, theirs in zip(train(checkpoint=folder, every=2), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    done_with(folder)
