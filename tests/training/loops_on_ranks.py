"""Training loops: the user's own, and more than one `fit()`."""

import keras
import tensorflow as tf
from covering import full
from models import assert_as_one_process, assert_equal_ranks, classify, conv_net, different_start, digits, equal

import easyscale
from easyscale.callbacks import Distribute

GLOBAL_BATCH = 24


def _sgd(rate=0.1):
    return keras.optimizers.SGD(rate, momentum=0.9)


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


class Measuring(keras.Sequential):
    """Reads weights before their update and uses what it has read after it."""

    def train_step(self, data):
        before = [tf.identity(variable) for variable in self.trainable_variables]
        logs = super().train_step(data)
        pairs = zip(before, self.trainable_variables, strict=True)
        return {"moved": sum(tf.reduce_sum(tf.abs(old - new)) for old, new in pairs), **logs}


@full
def check_weights_that_were_read_before_the_update_stay_what_they_were():
    """The ranks of a node have one copy of the weights in common: nobody may write to what another still reads."""

    def build():
        layers = [keras.layers.Flatten(), keras.layers.Dense(500), keras.layers.Dense(10)]
        return classify(Measuring([keras.Input((8, 8, 1)), *layers]), _sgd())

    equal(build, data=digits(24 * 8), epochs=3)


@full
def check_a_train_step_of_ones_own():
    def build():
        model = OwnStep()
        model.compile(_sgd())
        return model

    equal(build, exchanges=["ring"])


class CountsBatches(OwnStep):
    """Tracks means of batches, each of which counts as one, before and after the update."""

    def __init__(self):
        super().__init__()
        self.before, self.after = keras.metrics.Mean(name="before"), keras.metrics.Mean(name="after")

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, self(x, training=True), True))
        self.before.update_state(loss)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.after.update_state(2 * loss)
        return {metric.name: metric.result() for metric in self.metrics}

    def test_step(self, data):
        x, y = data
        self.after.update_state(tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, self(x), True)))
        return {metric.name: metric.result() for metric in self.metrics}

    @property
    def metrics(self):
        return [self.before, self.after]


@full
def check_means_of_batches_of_different_sizes_are_those_of_one_process():
    def build():
        model = CountsBatches()
        model.compile(_sgd())
        return model

    equal(build, exchanges=["ring"], validates=True)


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


def check_two_optimizers_uneven_data_and_two_fits():
    """The model itself is never built: `train_step` calls its parts only."""

    def build():
        model = TwoNets()
        model.compile(_sgd(), keras.optimizers.Adam(0.01))
        return model

    x, y = digits(GLOBAL_BATCH * 5 + 1)

    def distributed():
        model = build()
        xs, ys = easyscale.shard(x, y)
        batch = easyscale.local_batch(GLOBAL_BATCH)
        for _ in range(2):
            model.fit(xs, ys, batch_size=batch, shuffle=False, verbose=0, callbacks=[Distribute("tree")])
        assert isinstance(model.a_optimizer, easyscale.DistributedOptimizer)
        return model

    def single():
        model = build()
        for _ in range(2):
            model.fit(x, y, batch_size=GLOBAL_BATCH, shuffle=False, verbose=0)
        return model

    assert_as_one_process(distributed, single)


@full
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


@full
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


@full
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


@full
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


@full
def check_train_on_batch_with_an_optimizer_wrapped_by_hand_starts_equal():
    different_start()
    xs, ys = easyscale.shard(*digits(48))
    model = classify(conv_net(), easyscale.DistributedOptimizer(_sgd(), "tree"))
    for _ in range(3):
        model.train_on_batch(xs, ys)
    assert_equal_ranks(model.get_weights())
