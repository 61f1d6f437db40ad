"""Layers that are split within groups of ranks take the steps of one process: one group, and two side by side.

Each check returns the largest difference of a weight.
"""

import keras
import numpy as np
import tensorflow as tf
from split_on_ranks import (
    BOTH,
    adam,
    called_twice,
    classes,
    classifier,
    equal,
    largest_difference,
    looked_up,
    normalized,
    sgd,
)

import easyscale
from easyscale.callbacks import Distribute
from easyscale.parallel import Split

comm = easyscale.communicator.get()
GROUP = 2 if comm.size == 4 else "all"


def check_dense_layers_by_columns_and_by_rows():
    return max(equal(classifier(one), classes(), group=GROUP) for one in (sgd, adam))


def check_the_first_layer_and_all_layers():
    layers = {"first": "rows", "fc.*|last": "columns"}
    return max(equal(classifier(one), classes(), layers, group=GROUP) for one in (sgd, adam))


def check_clipping_by_the_norms_of_whole_gradients():
    optimizers = (lambda: sgd(clipnorm=0.1), lambda: adam(global_clipnorm=0.2))
    return max(equal(classifier(one), classes(), group=GROUP) for one in optimizers)


def check_a_validation_of_uneven_batches():
    return equal(classifier(sgd), classes(50), validates=True, group=GROUP)


def check_each_exchange_with_weights_that_come_late():
    options = [{"exchange": name, "bucket_bytes": 200} for name in (*easyscale.exchange.available(), "auto")]
    return max(equal(classifier(sgd), classes(), options=one, group=GROUP) for one in options)


def check_an_embedding_by_rows_and_by_columns():
    """Numbers come several times in a batch, and those of some rows never; zeros are masked."""

    generator = np.random.default_rng(3)
    words = generator.integers(0, 15, (49, 6)), generator.integers(0, 10, 49)
    optimizers = (sgd, adam, lambda: sgd(clipnorm=0.05))
    ways = [{"embedding": way} for way in ("rows", "columns")]
    return max(equal(classifier(one, looked_up), words, way, group=GROUP) for one in optimizers for way in ways)


def _language(dropout=0.0):
    word = keras.Input((6,), dtype="int32")
    x = keras.layers.Embedding(23, 8, mask_zero=True)(word)
    x = x + keras.layers.MultiHeadAttention(4, 3, dropout=dropout, name="attention")(x, x, use_causal_mask=True)
    x = x + keras.layers.MultiHeadAttention(4, 3, name="attention_of_two")(x, keras.ops.tanh(x))
    hidden = keras.layers.EinsumDense("...x,xy->...y", 12, bias_axes="y", activation="relu", name="ffn_1")(x)
    x = x + keras.layers.EinsumDense("...x,xy->...y", 8, bias_axes="y", name="ffn_2")(hidden)
    return keras.Model(word, keras.layers.Dense(10)(keras.layers.Flatten()(x)))


def _words(count=49):
    generator = np.random.default_rng(3)
    return generator.integers(0, 23, (count, 6)), generator.integers(0, 10, count)


def check_attention_by_heads_and_a_transformers_dense_layers():
    """4 heads of 3 numbers each over 2 or 3 ranks; inputs of a layer once and twice."""
    ways = {"attention.*": "heads", "ffn_1": "columns", "ffn_2": "rows"}
    return max(equal(classifier(one, _language), _words(), ways, group=GROUP) for one in (sgd, adam))


def check_layers_that_keep_their_columns_and_others_that_cannot():
    """Of several outputs, with an activation over all columns, called twice, or in a model inside of the model."""

    def build():
        x = inputs = keras.Input((12,))
        two = [keras.layers.Dense(22, activation=one, name=f"a_{one}") for one in ("relu", "softmax", "tanh", "gelu")]
        back = [keras.layers.Dense(9, name=f"b_{number}") for number in range(4)]
        inner = keras.Sequential([keras.Input((12,)), two[3], back[3]])
        shared = two[2](x)
        x = back[0](two[0](x)) + back[1](two[1](x)) + back[2](shared) + inner(x)
        return keras.Model(inputs, keras.layers.Dense(10, name="last")(keras.layers.Concatenate()([x, shared])))

    return max(
        equal(classifier(one, build), classes(), {"a_.*": "columns", "b_.*": "rows"}, group=GROUP)
        for one in (sgd, adam)
    )


def check_a_layer_that_is_called_twice():
    ways = ({"shared": "columns", "table": "rows"}, {"shared": "rows"})
    return max(equal(classifier(sgd, called_twice), _words(), way, group=GROUP) for way in ways)


def check_the_last_layer_by_vocabulary():
    def build():
        layers = [keras.layers.Dense(17, activation="tanh"), keras.layers.Dense(10, name="last")]
        return keras.Sequential([keras.Input((12,)), *layers])

    ways = {"last": "vocabulary"}
    return max(equal(classifier(one, build), classes(50), ways, validates=True, group=GROUP) for one in (sgd, adam))


def check_a_sum_of_losses_over_uneven_batches():
    x, _ = classes()
    make = classifier(sgd, loss=keras.losses.MeanSquaredError("sum"), metrics=[])
    return equal(make, (x, 0.1 * x[:, :10]), group=GROUP)


def check_steps_without_a_graph():
    return equal(classifier(sgd, run_eagerly=True), classes(), group=GROUP)


def check_several_steps_at_a_time_and_weighted_samples():
    weights = np.linspace(0.1, 2.0, 96).astype("float32")
    model, reference = classifier(sgd, steps_per_execution=2)(), classifier(sgd, steps_per_execution=2)()
    told = comm.all_gather_object([one.tolist() for one in model.get_weights()])
    reference.set_weights(list(map(np.array, told[0])))
    reference.fit(*classes(96), sample_weight=weights, batch_size=24, epochs=2, shuffle=False, verbose=0)
    distribute = Distribute("ring", model_parallel=Split(BOTH, group=GROUP))
    data = tf.data.Dataset.from_tensor_slices((*classes(96), weights))
    part = easyscale.shard(data).batch(easyscale.local_batch(24))
    model.fit(part, epochs=2, verbose=0, callbacks=[distribute])
    delta = largest_difference(model, reference)
    assert delta <= 1e-5, delta
    return delta


def check_batch_normalization_over_all_samples_between_split_layers():
    return equal(classifier(sgd, normalized), classes(), validates=True, group=GROUP)


def check_dropout_and_shuffled_data_are_those_of_one_process():
    """Each rank shuffles in its own way, and the batch is the first one's. Two groups draw other numbers."""
    if GROUP != "all":
        return 0.0

    def build():
        layers = [keras.layers.Dropout(0.3), keras.layers.Dense(22, activation="tanh", name="fc1")]
        layers += [keras.layers.Dropout(0.3), keras.layers.Dense(13, name="fc2"), keras.layers.Dense(10)]
        return keras.Sequential([keras.Input((12,)), *layers])

    return max(equal(classifier(sgd, build), classes(), group=GROUP, shuffle=one) for one in (False, True))
