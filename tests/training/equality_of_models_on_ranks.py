"""P processes take the steps of one: losses, layers and training steps of one's own, as in `equality_on_ranks.py`."""

import contextlib

import keras
import numpy as np
from models import assert_as_one_process, classify, conv_net, dense, digits, equal, sgd

import easyscale

UNEVEN = digits(4 * 24 + 2)


class Positions(keras.layers.Layer):
    """Adds an embedding of positions, whose rows are the same ones in every batch."""

    def __init__(self, prefix=()):
        super().__init__()
        self.prefix, self.positions = list(prefix), keras.layers.Embedding(10, 8)

    def call(self, x):
        length = keras.ops.shape(x)[2]
        if self.prefix:
            return x + self.positions(keras.ops.convert_to_tensor(self.prefix))
        return x + self.positions(keras.ops.arange(length))


def check_an_embedding_of_positions():
    """One process has the gradient of each row once, whatever the number of samples: Adam squares the sum."""

    def build(prefix=(), **options):
        layers = [keras.Input((8, 8, 1)), keras.layers.Reshape((8, 8)), Positions(prefix)]
        layers += [keras.layers.Flatten(), keras.layers.Dense(10)]
        return classify(keras.Sequential(layers), keras.optimizers.Adam(0.01, **options))

    builds = [build, lambda: build(clipnorm=0.1), lambda: build([7, 6, 5, 4, 3, 2, 1, 0])]
    return max(equal(build) for build in builds)


# Losses


def check_sample_weight():
    weights = np.random.default_rng(0).uniform(0, 3, len(UNEVEN[0])).astype("float32")
    weights[::5] = 0
    return equal(dense(sgd), (*UNEVEN, weights))


def check_class_weight():
    return equal(dense(sgd), class_weight={digit: 0.1 * digit for digit in range(10)})


def _reduced(reduction, rate=0.1):
    def build():
        model = conv_net()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)
        model.compile(keras.optimizers.SGD(rate, momentum=0.9), loss, weighted_metrics=["accuracy"])
        return model

    return build


def check_loss_that_is_a_sum():
    return equal(_reduced("sum", 0.002), validates=True)


def check_loss_that_is_a_weighted_sum():
    weights = np.random.default_rng(0).uniform(0, 3, len(UNEVEN[0])).astype("float32")
    return equal(_reduced("sum", 0.002), (*UNEVEN, weights))


def check_loss_that_is_a_mean_by_sample_weights():
    weights = np.random.default_rng(0).uniform(0, 3, len(UNEVEN[0])).astype("float32")
    return equal(_reduced("mean_with_sample_weight"), (*UNEVEN, weights), validates=True)


def check_loss_that_is_a_function_of_ones_own():
    def cubed(y_true, y_pred):
        return keras.ops.mean(keras.ops.abs(y_pred - keras.ops.one_hot(y_true[:, 0], 10)) ** 3, axis=-1)

    def build():
        model = conv_net()
        model.compile(sgd(), cubed)
        return model

    return equal(build, (UNEVEN[0], UNEVEN[1][:, None]))


def _sentences():
    """Sequences of 3 to 8 words, filled up with zeros, and a label for each word."""
    generator = np.random.default_rng(0)
    words = generator.integers(1, 30, (98, 8))
    words[np.arange(8) >= generator.integers(3, 9, 98)[:, None]] = 0
    return words, (words % 5).astype("int32")


def _tagger(optimizer, **loss):
    def build():
        layers = [keras.Input((8,), dtype="int32"), keras.layers.Embedding(30, 6, mask_zero="ignore_class" not in loss)]
        model = keras.Sequential([*layers, keras.layers.Dense(8, "tanh"), keras.layers.Dense(5)])
        model.compile(
            optimizer(), keras.losses.SparseCategoricalCrossentropy(from_logits=True, **loss), metrics=["accuracy"]
        )
        return model

    return build


def check_loss_of_words_that_are_not_masked():
    return equal(_tagger(sgd), _sentences(), validates=True)


def check_loss_of_words_that_are_not_masked_by_sample_weights():
    words, tags = _sentences()
    weights = np.random.default_rng(1).uniform(0, 2, len(words)).astype("float32")[:, None]
    return equal(_tagger(sgd, reduction="mean_with_sample_weight"), (words, tags, weights))


def check_loss_that_ignores_a_class():
    words, tags = _sentences()
    return equal(_tagger(sgd, ignore_class=0), (words, tags), validates=True)


def check_several_outputs_and_losses():
    x, y = digits(96)

    def build():
        inputs = keras.Input((8, 8, 1))
        flat = keras.layers.Flatten()(inputs)
        outputs = {"one": keras.layers.Dense(10, name="one")(flat), "two": keras.layers.Dense(1, name="two")(flat)}
        model = keras.Model(inputs, outputs)
        losses = {
            "one": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            "two": keras.losses.MeanSquaredError(reduction="sum"),
        }
        metrics = {"one": ["accuracy"], "two": ["mae"]}
        model.compile(keras.optimizers.SGD(0.001, momentum=0.9), losses, loss_weights=[1.0, 0.1], metrics=metrics)
        return model

    return equal(build, (x, {"one": y, "two": (y / 10).astype("float32")}))


def check_regularizers_of_weights_and_activities():
    def build():
        layers = [keras.Input((8, 8, 1)), keras.layers.Flatten()]
        layers += [keras.layers.Dense(16, activation="relu", kernel_regularizer="l2", activity_regularizer="l1")]
        return classify(keras.Sequential([*layers, keras.layers.Dense(10)]), sgd())

    return equal(build)


# Data that go on from one epoch to the next; the last batch of all leaves nothing for some workers


def check_one_step_in_an_epoch():
    return equal(dense(sgd), digits(2 * 24 + 1), epochs=7, exchanges=["ring"], steps_per_epoch=1)


def check_two_steps_in_an_epoch_and_data_for_three():
    return equal(dense(sgd), digits(2 * 24 + 1), epochs=5, exchanges=["ring"], steps_per_epoch=2)


# Layers


def _normalized(synchronized=True, axis=-1):
    def build():
        layers = [keras.Input((8, 8, 1)), keras.layers.Conv2D(4, 3, activity_regularizer=keras.regularizers.L2(1e-4))]
        layers += [keras.layers.BatchNormalization(synchronized=synchronized), keras.layers.ReLU()]
        layers += [keras.layers.Flatten(), keras.layers.Dense(8)]
        layers += [keras.layers.BatchNormalization(synchronized=synchronized), keras.layers.Dense(10)]
        return classify(keras.Sequential(layers), sgd())

    return build


def check_synchronized_batch_normalization():
    return equal(_normalized(), validates=True)


def check_synchronized_batch_normalization_after_compiling_again():
    x, y = digits(2 * 24 + 5)

    def train(distribute):
        parts, size = ((x, y), 24) if distribute is None else (easyscale.shard(x, y), easyscale.local_batch(24))
        with easyscale.scope() if distribute is not None else contextlib.nullcontext():
            model = _normalized()()
            for rate in (0.1, 0.02):
                classify(model, keras.optimizers.SGD(rate, momentum=0.9))
                callbacks = [] if distribute is None else [easyscale.callbacks.Distribute(**distribute)]
                model.fit(*parts, batch_size=size, epochs=2, shuffle=False, verbose=0, callbacks=callbacks)
        return model

    return assert_as_one_process(lambda: train({}), lambda: train(None))


def check_a_synchronized_layer_that_two_models_have_in_common():
    x, y = digits(2 * 24 + 5)

    def train(distribute):
        parts, size = ((x, y), 24) if distribute is None else (easyscale.shard(x, y), easyscale.local_batch(24))
        with easyscale.scope() if distribute is not None else contextlib.nullcontext():
            first = _normalized()()
            inputs = keras.Input((8, 8, 1))
            second = classify(keras.Model(inputs, keras.layers.Rescaling(0.5)(first(inputs))), sgd())
            for model in (first, second, first):
                callbacks = [] if distribute is None else [easyscale.callbacks.Distribute(**distribute)]
                model.fit(*parts, batch_size=size, shuffle=False, verbose=0, callbacks=callbacks)
        return first

    return assert_as_one_process(lambda: train({}), lambda: train(None))


def check_synchronized_batch_normalization_with_a_mask():
    words, tags = _sentences()

    def build():
        layers = [keras.Input((8,), dtype="int32"), keras.layers.Embedding(30, 6, mask_zero=True)]
        layers += [keras.layers.BatchNormalization(synchronized=True), keras.layers.Dense(5)]
        model = keras.Sequential(layers)
        model.compile(sgd(), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    return equal(build, (words, tags))


def _embedding(optimizer, words=300):
    def build():
        layers = [keras.Input((6,), dtype="int32"), keras.layers.Embedding(words, 4), keras.layers.Flatten()]
        return classify(keras.Sequential([*layers, keras.layers.Dense(10)]), optimizer())

    return build


def _words(count=300):
    generator = np.random.default_rng(0)
    return generator.integers(0, count, (98, 6)), generator.integers(0, 10, 98)


def check_spectral_normalization():
    def build():
        normalized = keras.layers.SpectralNormalization
        layers = [keras.Input((8, 8, 1)), keras.layers.Flatten(), normalized(keras.layers.Dense(150, "tanh"))]
        return classify(keras.Sequential([*layers, normalized(keras.layers.Dense(10))]), sgd())

    return equal(build)


def check_sparse_gradients():
    return equal(_embedding(sgd), _words())


def check_sparse_gradients_of_which_there_are_more_than_dense_ones():
    return equal(_embedding(sgd, 5), _words(5))


def check_sparse_gradients_with_adam():
    return equal(_embedding(keras.optimizers.Adam), _words(20))


def check_sparse_gradients_that_are_clipped():
    return equal(_embedding(lambda: keras.optimizers.Adam(global_clipnorm=0.5)), _words(20))


def check_sparse_gradients_that_are_clipped_by_their_norm():
    return equal(_embedding(lambda: keras.optimizers.Adam(clipnorm=0.05)), _words(20))


def check_sparse_gradients_that_are_accumulated():
    return equal(_embedding(lambda: sgd(gradient_accumulation_steps=2)), _words())


# Training steps of one's own


class OwnStep(keras.Model):
    """The pattern of Keras's guide."""

    def __init__(self):
        super().__init__()
        self.net = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(10)])
        self.mean_loss = keras.metrics.Mean(name="loss")
        self.loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")

    def call(self, x):
        return self.net(x)

    def train_step(self, data):
        import tensorflow as tf

        x, y = data
        with tf.GradientTape() as tape:
            loss = self.loss_of(y, self(x, training=True)) / 24
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        self.mean_loss.update_state(loss, sample_weight=tf.shape(x)[0])
        return {"loss": self.mean_loss.result()}

    @property
    def metrics(self):
        return [self.mean_loss]


def check_a_train_step_of_ones_own_with_a_sum():
    def build():
        model = OwnStep()
        model.compile(sgd())
        return model

    return equal(build)


class TwoNets(keras.Model):
    """Two nets of one shape, which one optimizer trains one after the other."""

    def __init__(self):
        super().__init__()
        self.mean_loss = keras.metrics.Mean(name="loss")
        self.nets = [keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(10)]) for _ in range(2)]
        self.loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def call(self, x):
        return self.nets[0](x) + self.nets[1](x)

    def train_step(self, data):
        import tensorflow as tf

        x, y = data
        for net in self.nets:
            with tf.GradientTape() as tape:
                loss = self.loss_of(y, self(x, training=True))
            variables = net.trainable_variables
            self.optimizer.apply(tape.gradient(loss, variables), variables)
        self.mean_loss.update_state(loss, sample_weight=tf.shape(x)[0])
        return {"loss": self.mean_loss.result()}

    @property
    def metrics(self):
        return [self.mean_loss]


def check_one_optimizer_for_two_lists_of_variables_of_the_same_shapes():
    def build():
        model = TwoNets()
        model(UNEVEN[0][:1])
        model.compile(sgd())
        model.optimizer.build(model.trainable_variables)
        return model

    return equal(build)


class LossOf(keras.Model):
    """A step of one's own that differentiates what `loss_of(model, labels, logits)` returns."""

    def __init__(self, loss_of):
        super().__init__()
        self.net = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(10)])
        self._loss_of = loss_of

    def call(self, x):
        return self.net(x)

    def train_step(self, data):
        import tensorflow as tf

        x, y = data
        with tf.GradientTape() as tape:
            logits = self(x, training=True)
            loss = self._loss_of(self, y, logits)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        for metric in self.metrics:
            metric.update_state(*([loss] if metric.name == "loss" else [y, logits]))
        return {metric.name: metric.result() for metric in self.metrics}  # as Keras's guides have it


def _chosen(y, logits):
    """Leave the small digits out: of the 2 samples of the last batch one rank has none, and another all."""
    import tensorflow as tf

    return tf.boolean_mask(y, y > 3), tf.boolean_mask(logits, y > 3)


def _cross_entropy(**options):
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, **options)


def _equal_by(loss_of, rate=0.1):
    def build():
        model = LossOf(loss_of)
        model.compile(keras.optimizers.SGD(rate, momentum=0.9), _cross_entropy(), metrics=["accuracy"])
        return model

    return equal(build)


def check_a_step_that_takes_the_loss_of_chosen_elements():
    return _equal_by(lambda model, y, logits: _cross_entropy()(*_chosen(y, logits)))


def check_a_step_that_differentiates_a_loss_without_a_reduction():
    return _equal_by(lambda model, y, logits: _cross_entropy(reduction=None)(y, logits), 0.005)


def check_a_step_that_differentiates_what_a_function_of_keras_returns():
    def loss_of(model, y, logits):
        return keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)

    return _equal_by(loss_of, 0.005)


def check_a_step_that_differentiates_numbers_and_a_number_together():
    def loss_of(model, y, logits):
        return [_cross_entropy(reduction=None)(y, logits), _cross_entropy()(y, logits)]

    class Both(LossOf):
        @property
        def metrics(self):
            return []

    def build():
        model = Both(loss_of)
        model.compile(keras.optimizers.SGD(0.005))
        return model

    return equal(build)


def check_a_compiled_loss_that_leaves_elements_out():
    def of_large_digits(y, logits):
        return keras.losses.sparse_categorical_crossentropy(*_chosen(y[:, 0], logits), from_logits=True)

    def build():
        model = conv_net()
        model.compile(sgd(), of_large_digits)
        return model

    return equal(build, (UNEVEN[0], UNEVEN[1][:, None]))
