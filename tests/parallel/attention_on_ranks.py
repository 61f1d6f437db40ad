"""Attention that is split by heads takes the steps of one process, and sends what is said."""

import keras
import numpy as np
from counts import Counts
from covering import full
from split_on_ranks import adam, classifier, equal, sgd

import easyscale
from easyscale.callbacks import Distribute
from easyscale.parallel import Split
from easyscale.parallel.split.trip import Rows, Summands

comm = easyscale.communicator.get()
HEADS = {"attention.*": "heads"}


def words(count=49, length=6, first=0):
    """With a batch of 24 the last one has one sample: all ranks but one have no part in it."""
    generator = np.random.default_rng(3)
    return generator.integers(first, 23, (count, length)), generator.integers(0, 10, count)


def net(attend, mask_zero=False, **options):
    """A model of words, in which `attend` makes something of their vectors."""

    def build():
        word = keras.Input((None,), dtype="int32")
        x = keras.layers.Embedding(23, 8, mask_zero=mask_zero)(word)
        options_of_layer = {"num_heads": 5, "key_dim": 3, "name": "attention", **options}
        x = keras.layers.Add()([x, attend(keras.layers.MultiHeadAttention(**options_of_layer), x)])
        return keras.Model(word, keras.layers.Dense(10)(keras.layers.GlobalAveragePooling1D()(x)))

    return build


def check_heads_of_queries_that_are_also_keys_and_values():
    """5 heads over 2 to 4 ranks."""
    build = net(lambda attention, x: attention(x, x))
    optimizers = (lambda: sgd(clipnorm=0.05), lambda: adam(global_clipnorm=0.2))
    return max(equal(classifier(optimizer, build), words(), HEADS, validates=True) for optimizer in optimizers)


@full
def check_causal_heads_without_biases_of_another_output():
    build = net(lambda attention, x: attention(x, x, use_causal_mask=True), use_bias=False, output_shape=8, value_dim=4)
    return equal(classifier(sgd, build), words(), HEADS)


@full
def check_masks_of_zeros_and_of_pairs():
    """The layer takes the mask away from its inputs, and gives it to its output, as it does on one process."""

    def attend(attention, x):
        pairs = keras.ops.abs(keras.ops.arange(6)[:, None] - keras.ops.arange(6)[None]) < 4
        return attention(x, keras.ops.tanh(x), attention_mask=pairs[None])

    causal = net(lambda attention, x: attention(x, x, use_causal_mask=True), mask_zero=True)
    both = net(attend, mask_zero=True)
    return max(equal(classifier(sgd, build), words(), HEADS, validates=build is both) for build in (causal, both))


@full
def check_other_values_and_keys_of_another_length():
    def build():
        word, image = keras.Input((6,), dtype="int32"), keras.Input((4, 5))
        x = keras.layers.Embedding(23, 8)(word)
        value, key = keras.layers.Dense(7)(image), keras.layers.Dense(9)(image)
        masked = keras.ops.sum(image, axis=-1) > -2
        pairs = keras.ops.logical_or(masked[:, None, :], keras.ops.ones((1, 6, 1), "bool"))
        x = x + keras.layers.MultiHeadAttention(4, 3, name="attention")(x, value, key=key, attention_mask=pairs)
        x = x + keras.layers.MultiHeadAttention(4, 3, name="attention2")(x, image, value_mask=masked)
        first = keras.ops.arange(4)[None] < 3  # of each sample
        x = x + keras.layers.MultiHeadAttention(4, 3, name="attention3")(x, image, value_mask=first)
        return keras.Model([word, image], keras.layers.Dense(10)(keras.layers.Flatten()(x)))

    x, y = words()
    data = (x, np.random.default_rng(1).normal(size=(len(x), 4, 5)).astype("float32"))
    return _equal_of_two(classifier(sgd, build), data, y, HEADS)


def _equal_of_two(make, x, y, layers):
    """As `equal`, of a model of two inputs."""

    def joined():
        both = keras.Input((6 + 20,))
        inputs = keras.ops.cast(both[:, :6], "int32"), keras.ops.reshape(both[:, 6:], (-1, 4, 5))
        inner = make()
        model = keras.Model(both, inner(list(inputs)))
        model.compile(inner.optimizer.__class__.from_config(inner.optimizer.get_config()), inner.loss)
        return model

    flat = np.concatenate([x[0].astype("float32"), x[1].reshape(len(y), -1)], axis=1)
    return equal(joined, (flat, y), layers)


@full
def check_grouped_queries_that_are_masked():
    """8 heads of queries and 4 of keys over 2 to 4 ranks. Unlike other attention, it leaves masks where they are."""

    def attend(_, x):
        layer = keras.layers.GroupQueryAttention(3, 8, 4, name="attention")
        return layer(x, keras.ops.tanh(x), use_causal_mask=True) + layer(x, x)

    return equal(classifier(sgd, net(attend, mask_zero=True, name="other")), words(), HEADS, validates=True)


@full
def check_a_block_called_twice_with_dense_layers_split_as_well():
    def build():
        word = keras.Input((6,), dtype="int32")
        x = keras.layers.Embedding(23, 8, name="table")(word)
        attention = keras.layers.MultiHeadAttention(4, 3, name="attention")
        x = x + attention(x, x)
        x = x + attention(x, keras.ops.tanh(x), use_causal_mask=True)
        x = x + keras.layers.EinsumDense("...x,xy->...y", 8, bias_axes="y", activation="relu", name="ffn")(x)
        return keras.Model(word, keras.layers.Dense(10)(keras.layers.Flatten()(x)))

    return equal(classifier(adam, build), words(), {**HEADS, "ffn": "columns", "table": "rows"})


@full
def check_steps_without_a_graph():
    build = net(lambda attention, x: attention(x, x))
    return equal(classifier(sgd, build, run_eagerly=True), words(25), HEADS, epochs=1)


def _fit(model, data, batch=24, layers=HEADS, callbacks=(), **options):
    options = {"epochs": 1, "shuffle": False, "verbose": 0, **options}
    distribute = Distribute("ring", model_parallel=Split(layers))
    return model.fit(
        *easyscale.shard(*data), batch_size=easyscale.local_batch(batch), callbacks=[distribute, *callbacks], **options
    )


@full
def check_dropout_is_drawn_again_and_a_validation_has_none():
    """With a rate of learning of 0 the loss of a validation is that of one process, and that of training is not."""
    build = net(lambda attention, x: attention(x, x), dropout=0.5)
    losses = []
    for _ in range(2):
        keras.utils.set_random_seed(1)
        model = classifier(lambda: keras.optimizers.SGD(0.0), build)()
        history = _fit(model, words(49), epochs=2, validation_data=easyscale.shard(*words(49))).history
        expected, _ = model.evaluate(*words(49), verbose=0)
        np.testing.assert_allclose(history["val_loss"], [expected] * 2, rtol=1e-5)
        assert len({*history["loss"], expected}) == 3
        np.testing.assert_allclose(history["loss"], [expected] * 2, rtol=0.2)
        losses.append(history["loss"])
    assert losses[0] == losses[1]


def _sent_in_a_step(attend):
    """4 samples of 6 positions of 12 numbers on each worker, and 1 of results; the first layer is split as well."""

    def build():
        x = keras.Input((6, 12))
        attention = keras.layers.MultiHeadAttention(4, 3, use_bias=False, output_shape=1, name="attention")
        vectors = keras.layers.Dense(12, use_bias=False, name="first")(x)
        return keras.Model(x, keras.layers.Flatten()(attend(attention, vectors)))

    keras.utils.set_random_seed(1)
    size, counts = comm.size, Counts()
    generator = np.random.default_rng(0)
    data = generator.normal(size=(16 * size, 6, 12)).astype("float32"), generator.integers(0, 6, 16 * size)
    _fit(classifier(sgd, build, metrics=[])(), data, 4 * size, {**HEADS, "first": "rows"}, [counts])
    steps = counts.in_steps
    assert steps == [steps[0]] * 2  # the weights are compared behind the first
    return steps[0]


@full
def check_what_is_sent_in_a_step_is_what_the_docstring_says():
    """Inputs once, though they are queries, keys and values; masks as bytes, one way. All weights are slices."""
    size = comm.size
    a, b, m = 4 * 4 * 6 * 12, 4 * 4 * 6, 4 * 6 * 6
    first = Rows.cost(a, a, size, has_gradient=False)
    assert _sent_in_a_step(lambda attention, x: attention(x, x)) == first + Summands.cost(a, b, size)

    def masked(attention, x):
        pairs = keras.ops.ones((1, 6, 6), "bool")
        return attention(x, keras.ops.tanh(x), attention_mask=pairs, use_causal_mask=True)

    assert _sent_in_a_step(masked) == first + Summands.cost(2 * a, b, size) + (size - 1) * m
