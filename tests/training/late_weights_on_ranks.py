"""Weights that come back while the next step begins: whoever looks at them sees those of the step that is done."""

import itertools
import threading
from unittest import mock

import keras
import numpy as np
import tensorflow as tf
from covering import full
from keras.callbacks import LambdaCallback, ModelCheckpoint, TerminateOnNaN
from models import (
    EXCHANGES,
    TOLERANCE,
    assert_as_one_process,
    assert_equal_ranks,
    classify,
    conv,
    conv_net,
    dense,
    digits,
    equal,
    sgd,
)
from one_process import STEPS, UNEVEN, as_one_process

import easyscale
from easyscale.callbacks import Distribute
from easyscale.layout.shards import Shards
from easyscale.step.late_gather import LateGather

comm = easyscale.communicator.get()
IN_BUCKETS = {"bucket_bytes": 512}


class Watched:
    """Counts, in a context, the buckets that steps have sent, and those that came in a step or outside of one."""

    def __enter__(self):
        self.sent = self.received = self.settled = 0
        wait, settle = LateGather._wait, LateGather.settle

        def counted_wait(late, bucket):
            came = wait(late, bucket)
            self.received += bool(came)
            return came

        def counted_settle(late):
            self.settled += len(late._coming)
            settle(late)

        self._patches = [
            mock.patch.object(LateGather, "_wait", counted_wait),
            mock.patch.object(LateGather, "settle", counted_settle),
        ]
        for one in self._patches:
            one.__enter__()
        return self

    def __exit__(self, *_):
        for one in self._patches:
            one.__exit__(None, None, None)

    @property
    def late(self):
        """How many came in the next step."""
        return self.received - self.settled


def _train(**options):
    model = conv(keras.optimizers.Adam)()
    x, y = easyscale.shard(*digits(5 * 24))
    distribute = Distribute("ring", **{**IN_BUCKETS, **options})
    model.fit(x, y, batch_size=easyscale.local_batch(24), verbose=0, callbacks=[distribute])
    return model


def check_each_exchange_takes_the_steps_of_one_process():
    with Watched() as watched:
        delta = equal(conv(keras.optimizers.Adam), distribute=IN_BUCKETS, exchanges=EXCHANGES)
    assert watched.late > 0
    return delta


@full
def check_all_but_the_first_and_the_last_step_receive_in_the_next_one():
    with Watched() as watched:
        _train()
    # 5 steps: after the first weights are compared, after the last the epoch ends.
    assert watched.late * 2 == watched.settled * 3 > 0


class Passed(keras.layers.Layer):
    """Calls Python when a forward pass has come here."""

    def __init__(self, note):
        super().__init__()
        self._note = note

    def call(self, inputs):
        # TensorFlow would make a call with an effect behind all that stand before it in the graph.
        noted = tf.numpy_function(self._note, [inputs], inputs.dtype, stateful=False)
        return inputs + 0 * tf.stop_gradient(tf.ensure_shape(noted, inputs.shape))


@full
def check_a_layer_computes_while_the_weights_of_the_next_are_on_their_way():
    """The last bucket of steps 2 to 4 is held up until the first layer of the next step has computed."""
    changed, passes, calls = threading.Condition(), [], itertools.count()

    def note(array):
        with changed:
            passes.append(1)
            changed.notify_all()
        return array

    def held_up(shards, vector):
        step, number = divmod(next(calls), len(shards.buckets))
        if number == len(shards.buckets) - 1 and step in (1, 2, 3):
            with changed:
                assert changed.wait_for(lambda: len(passes) >= step + 2, timeout=60), "no layer has computed"
        gather(shards, vector)

    layers = [keras.Input((64,)), keras.layers.Dense(16), Passed(note), keras.layers.Dense(10)]
    model = classify(keras.Sequential(layers), sgd())
    x, y = easyscale.shard(*digits(5 * 24))
    gather, options = Shards.gather_bucket, {"batch_size": easyscale.local_batch(24), "verbose": 0}
    with mock.patch.object(Shards, "gather_bucket", held_up):
        model.fit(x.reshape(-1, 64), y, callbacks=[Distribute("ring", **IN_BUCKETS)], **options)
    assert len(passes) == 5 and next(calls) == 5 * 3


@full
def check_the_same_is_sent_with_and_without():
    sent = []
    for how in (LateGather, lambda *_: None):
        with mock.patch("easyscale.step.gradients.LateGather", how):
            before = comm.sent.messages, comm.sent.bytes
            _train()
            sent.append((comm.sent.messages - before[0], comm.sent.bytes - before[1]))
    assert sent[0] == sent[1], sent


@full
def check_one_vector_is_waited_for():
    with Watched() as watched:
        _train(bucket_bytes=None)
    assert watched.received == 0


@full
def check_replicated_updates_are_waited_for():
    with Watched() as watched:
        _train(update="replicated")
    assert watched.received == 0


@full
def check_steps_per_execution():
    return equal(dense(sgd, steps_per_execution=3), distribute=IN_BUCKETS, exchanges=["ring"])


@full
def check_data_whose_end_is_not_known():
    """Keras begins a step more, which finds none."""
    x, y = digits(4 * 24)

    def train(parts, size, distribute):
        model = conv(sgd)()
        data = tf.data.Dataset.from_tensor_slices(parts).batch(size).filter(lambda *batch: True)
        history = model.fit(data, epochs=3, verbose=0, callbacks=distribute)
        return model, history

    with Watched() as watched:
        delta = assert_as_one_process(
            lambda: train(easyscale.shard(x, y), easyscale.local_batch(24), [Distribute("ring", **IN_BUCKETS)]),
            lambda: train((x, y), 24, []),
        )
    assert watched.late > 0
    return delta


@full
def check_clipping_by_the_norm_of_all_gradients():
    return equal(conv(lambda: sgd(global_clipnorm=0.1)), distribute=IN_BUCKETS, exchanges=["ring"])


@full
def check_steps_without_graphs():
    with Watched() as watched:
        delta = equal(dense(sgd, run_eagerly=True), distribute=IN_BUCKETS, exchanges=["ring"])
    assert watched.received == 0
    return delta


class Unused(keras.layers.Layer):
    """Has weights that have no gradient."""

    def build(self, shape):
        self.unused = self.add_weight(shape=(300,), name="unused", initializer="ones")

    def call(self, inputs):
        return inputs


@full
def check_weights_without_a_gradient_stay():
    def build():
        layers = [keras.Input((8, 8, 1)), Unused(), keras.layers.Flatten(), Unused(), keras.layers.Dense(10)]
        return classify(keras.Sequential(layers), keras.optimizers.Adam())

    return equal(build, distribute={"bucket_bytes": 1500}, exchanges=["ring"])


@full
def check_rows_of_embeddings():
    def build():
        layers = [keras.Input((64,)), keras.layers.Embedding(17, 3), keras.layers.Flatten(), keras.layers.Dense(10)]
        return classify(keras.Sequential(layers), keras.optimizers.Adam())

    x, y = digits(4 * 24 + 2)
    with Watched() as watched:
        delta = equal(build, ((16 * x).reshape(-1, 64), y), distribute={"bucket_bytes": 100}, exchanges=["ring"])
    assert watched.late > 0
    return delta


def check_synchronized_batch_normalization():
    def build():
        layers = [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(4, 3),
            keras.layers.BatchNormalization(synchronized=True),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
        return classify(keras.Sequential(layers), sgd())

    return equal(build, distribute={"bucket_bytes": 64}, exchanges=["ring"], tolerance=2e-5)


class Clipped(keras.Model):
    """Clips its weights behind each update, as a Wasserstein critic does."""

    def train_step(self, data):
        logs = super().train_step(data)
        for variable in self.trainable_variables:
            variable.assign(keras.ops.clip(variable, -0.2, 0.2))
        return logs


@full
def check_a_step_of_ones_own_that_reads_new_weights_has_them():
    def build():
        net = conv_net()
        return classify(Clipped(net.inputs, net.outputs), sgd())

    with Watched() as watched:
        delta = equal(build, digits(4 * 24), distribute=IN_BUCKETS, exchanges=["ring"])  # data for all in each step
    assert watched.received == 0
    return delta


# Outside of steps


class Seen(keras.callbacks.Callback):
    """Keeps the weights that it sees in a hook of each step."""

    def __init__(self, hook):
        super().__init__()
        self.seen = []
        setattr(self, hook, lambda batch, logs=None: self.seen.append(self.model.get_weights()))


def _seen_in(hook):
    """Compare what a callback sees on each rank with what it sees on one process."""
    x, y = digits(4 * 24 + 2)
    ours, theirs = Seen(hook), Seen(hook)

    def distributed():
        model = conv(sgd)()
        parts, distribute = easyscale.shard(x, y), Distribute("ring", **IN_BUCKETS)
        options = {"batch_size": easyscale.local_batch(24), "epochs": 2, "shuffle": False, "verbose": 0}
        model.fit(*parts, callbacks=[ours, distribute], **options)
        return model

    def single():
        model = conv(sgd)()
        model.fit(x, y, batch_size=24, epochs=2, shuffle=False, verbose=0, callbacks=[theirs])
        return model

    delta = assert_as_one_process(distributed, single)
    if theirs.seen:
        assert len(ours.seen) == len(theirs.seen)
        for one, other in zip(ours.seen, theirs.seen, strict=True):
            for a, b in zip(one, other, strict=True):
                np.testing.assert_allclose(a, b, atol=TOLERANCE)
    return delta


@full
def check_a_callback_sees_the_weights_of_the_step_that_ends():
    return _seen_in("on_train_batch_end")


@full
def check_a_callback_sees_the_weights_of_the_step_before_the_one_that_begins():
    return _seen_in("on_train_batch_begin")


@full
def check_a_callback_of_one_rank_sees_the_weights_of_the_step():
    seen = []
    look = LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(model.get_weights()))
    model = conv(sgd)()
    x, y = easyscale.shard(*digits(4 * 24))
    last = comm.rank == comm.size - 1
    options = {"batch_size": easyscale.local_batch(24), "verbose": 0}
    model.fit(x, y, callbacks=[*[look] * last, Distribute("ring", **IN_BUCKETS)], **options)
    final = comm.all_gather_object([one.tolist() for one in seen[-1]] if last else None)[-1]
    for a, b in zip(final, model.get_weights(), strict=True):
        np.testing.assert_array_equal(np.array(a, b.dtype), b)


@full
def check_checkpoints_and_validations_have_the_weights_of_their_step():
    def callbacks(folder):
        names = "{epoch}-{batch}.weights.h5", "{epoch}.keras"
        return [
            ModelCheckpoint(folder / names[0], save_weights_only=True, save_freq=2),
            ModelCheckpoint(folder / names[1]),
        ]

    assert as_one_process(callbacks, data=UNEVEN, distribute=IN_BUCKETS) == 3 * STEPS


@full
def check_models_and_validations_at_the_end_of_an_epoch():
    with Watched() as watched:
        as_one_process(lambda folder: [ModelCheckpoint(folder / "{epoch}.keras")], distribute=IN_BUCKETS)
    assert watched.late > 0


@full
def check_evaluate_in_a_callback_sees_the_weights_of_the_step():
    x, y = digits(2 * 24)

    def train(parts, size, distribute):
        losses = []
        model = conv(sgd)()
        look = LambdaCallback(
            on_train_batch_end=lambda batch, logs: losses.append(model.evaluate(x, y, batch_size=48, verbose=0)[0])
        )
        model.fit(*parts, batch_size=size, epochs=2, shuffle=False, verbose=0, callbacks=[look, *distribute])
        return model, losses

    keras.utils.set_random_seed(1)
    expected = train((x, y), 24, [])[1] if easyscale.is_chief() else None
    keras.utils.set_random_seed(1)
    model, losses = train(easyscale.shard(x, y), easyscale.local_batch(24), [Distribute("ring", **IN_BUCKETS)])
    assert_equal_ranks(model.get_weights())
    if expected is not None:
        np.testing.assert_allclose(losses, expected, atol=TOLERANCE)


@full
def check_a_fit_that_a_callback_ends_leaves_the_weights_of_the_step():
    class Stop(Exception):
        pass

    def stop(batch, logs):
        if batch == 3:
            raise Stop

    def train(parts, size, distribute):
        model = conv(sgd)()
        callbacks = [LambdaCallback(on_train_batch_end=stop), *distribute]
        try:
            model.fit(*parts, batch_size=size, shuffle=False, verbose=0, callbacks=callbacks)
        except Stop:
            return model
        raise AssertionError("it went on")

    x, y = digits(6 * 24)
    distribute = [Distribute("ring", **IN_BUCKETS)]
    return assert_as_one_process(
        lambda: train(easyscale.shard(x, y), easyscale.local_batch(24), distribute), lambda: train((x, y), 24, [])
    )


@full
def check_interrupted_steps_leave_the_weights_of_the_last_one():
    """On all ranks, outside of callbacks: by the data."""
    x, y = digits(6 * 24)

    def train(parts, size, distribute):
        def batches():
            for batch in range(4):
                part = slice(batch * size, (batch + 1) * size)
                yield parts[0][part], parts[1][part]
            raise ValueError("no more")

        model = conv(sgd)()
        try:
            model.fit(batches(), steps_per_epoch=6, verbose=0, callbacks=distribute)
        except Exception as error:
            assert "no more" in str(error)
            return model
        raise AssertionError("it went on")

    with Watched() as watched:
        delta = assert_as_one_process(
            lambda: train(easyscale.shard(x, y), easyscale.local_batch(24), [Distribute("ring", **IN_BUCKETS)]),
            lambda: train((x, y), 24, []),
        )
    assert watched.late > 0
    return delta


@full
def check_fits_one_after_the_other_and_single_steps_between():
    x, y = digits(3 * 24)

    def train(parts, size, distribute):
        model = conv(sgd)()
        for _ in range(2):
            model.fit(*parts, batch_size=size, epochs=2, shuffle=False, verbose=0, callbacks=distribute)
            model.train_on_batch(*parts)
        model.set_weights([0.5 * weight for weight in model.get_weights()])
        model.fit(*parts, batch_size=size, shuffle=False, verbose=0, callbacks=[TerminateOnNaN(), *distribute])
        return model

    distribute = [Distribute("ring", **IN_BUCKETS)]
    return assert_as_one_process(
        lambda: train(easyscale.shard(x, y), easyscale.local_batch(24), distribute), lambda: train((x, y), 24, [])
    )
