"""Split layers take the steps of one process: weights, optimizer, history, and what comes after `fit()`.

Each check returns the largest difference of a weight.
"""

import keras
import numpy as np
import tensorflow as tf
from covering import full

import easyscale
from easyscale.callbacks import Distribute
from easyscale.parallel import Split

comm = easyscale.communicator.get()
BOTH = {"fc1": "columns", "fc2": "rows"}


def sgd(**options):
    return keras.optimizers.SGD(0.05, momentum=0.9, **options)


def adam(**options):
    return keras.optimizers.Adam(0.01, weight_decay=0.004, **options)


def dense_net():
    """Three layers that can be split, behind one that is not; 22 units are no multiple of 3 or 4."""
    layers = [
        keras.layers.Dense(17, activation="tanh", name="first"),
        keras.layers.Dense(22, activation="tanh", name="fc1"),
        keras.layers.Dense(13, activation="tanh", name="fc2"),
        keras.layers.Dense(10, name="last"),
    ]
    return keras.Sequential([keras.Input((12,)), *layers])


def looked_up():
    """The mean of a text's embeddings; zeros are masked."""
    table = keras.layers.Embedding(23, 7, mask_zero=True, name="embedding")
    layers = [table, keras.layers.GlobalAveragePooling1D()]
    return keras.Sequential([keras.Input((6,), dtype="int32"), *layers, keras.layers.Dense(10)])


def called_twice():
    """A layer that is called twice, on sequences."""
    word = keras.Input((6,), dtype="int32")
    table, shared = keras.layers.Embedding(23, 8, name="table"), keras.layers.Dense(8, name="shared")
    x = shared(keras.ops.tanh(shared(table(word)))) + table(word)
    return keras.Model(word, keras.layers.Dense(10)(keras.layers.Flatten()(x)))


def normalized():
    """Batch normalization over all samples, between layers that can be split."""
    layers = [
        keras.layers.Dense(22, name="fc1"),
        keras.layers.BatchNormalization(synchronized=True),
        keras.layers.Dense(13, activation="tanh", name="fc2"),
    ]
    return keras.Sequential([keras.Input((12,)), *layers, keras.layers.Dense(10)])


def classifier(optimizer, build=dense_net, **options):
    """Return a function that builds a model and compiles it."""

    def make():
        model = build()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer(), **{"loss": loss, "metrics": ["accuracy"], **options})
        return model

    return make


def classes(count=49):
    """With a batch of 24 the last one has one sample: all ranks but one have no part in it."""
    generator = np.random.default_rng(0)
    return generator.normal(size=(count, 12)).astype("float32"), generator.integers(0, 10, count)


def largest_difference(model, other):
    pairs = zip(model.get_weights(), other.get_weights(), strict=True)
    return max(float(np.abs(ours - theirs).max()) for ours, theirs in pairs)


def equal(
    make, data, layers=BOTH, batch=24, epochs=2, tolerance=1e-5, validates=False, options=None, group=None, **more
):
    """Train as one process, and with split layers; compare weights, optimizer, history, and what comes afterwards."""
    common = {"epochs": epochs, "shuffle": False, "verbose": 0} | more
    if comm.is_chief:
        keras.utils.set_random_seed(1)
        reference = make()
        validation = {"validation_data": data} if validates else {}
        expected = reference.fit(*data, batch_size=batch, **validation, **common)
    keras.utils.set_random_seed(1 + comm.rank)
    model = make()
    distribute = Distribute(**{"exchange": "ring", **(options or {})}, model_parallel=Split(layers, group))
    local, parts = easyscale.local_batch(batch), easyscale.shard(*data)
    validation = {"validation_data": parts} if validates else {}
    if not comm.is_chief:  # all ranks begin with the chief's weights
        model.set_weights([0 * weight for weight in model.get_weights()])
    history = model.fit(*parts, batch_size=local, callbacks=[distribute], **validation, **common)
    variables = [*model.weights, *model.optimizer.inner_optimizer.variables]
    told = [float(np.sum(np.array(one), dtype="float64")) for one in variables], history.history
    assert all(tuple(other) == told for other in comm.all_gather_object(told))
    predicted = model.predict(data[0], verbose=0)
    delta = np.zeros(1)
    if comm.is_chief:
        delta[0] = largest_difference(model, reference)
        assert delta[0] <= tolerance, delta
        for ours, theirs in zip(variables, [*reference.weights, *reference.optimizer.variables], strict=True):
            np.testing.assert_allclose(np.array(ours), np.array(theirs), rtol=1e-3, atol=1e-5, err_msg=theirs.path)
        assert list(history.history) == list(expected.history)
        for name, values in expected.history.items():
            np.testing.assert_allclose(history.history[name], values, rtol=1e-4, atol=1e-6, err_msg=name)
        np.testing.assert_allclose(predicted, reference.predict(data[0], verbose=0), atol=1e-4)
    return float(comm.all_gather_rows(delta).max())


@full
def check_dense_layers_by_columns_and_by_rows():
    return max(equal(classifier(optimizer), classes()) for optimizer in (sgd, adam))


@full
def check_the_first_layer_and_all_layers():
    """Nothing is reduced where all weights are slices, and rows of data have no gradient."""
    layers = {"first": "rows", "fc.*|last": "columns"}
    return max(equal(classifier(optimizer), classes(), layers) for optimizer in (sgd, adam))


@full
def check_clipping_by_the_norms_of_whole_gradients():
    optimizers = (lambda: sgd(clipnorm=0.1), lambda: adam(global_clipnorm=0.2))
    return max(equal(classifier(optimizer), classes()) for optimizer in optimizers)


@full
def check_a_validation_of_uneven_batches():
    return equal(classifier(sgd), classes(50), validates=True)


def check_an_embedding_by_rows_and_by_columns():
    """Numbers come several times in a batch, and those of some rows never; zeros are masked."""

    generator = np.random.default_rng(3)
    words = generator.integers(0, 15, (49, 6)), generator.integers(0, 10, 49)
    optimizers = (sgd, adam, lambda: sgd(clipnorm=0.05))
    ways = [{"embedding": way} for way in ("rows", "columns")]
    return max(equal(classifier(one, looked_up), words, way) for one in optimizers for way in ways)


@full
def check_a_layer_that_is_called_twice_on_sequences():
    generator = np.random.default_rng(3)
    words = generator.integers(0, 23, (49, 6)), generator.integers(0, 10, 49)
    ways = ({"shared": "columns", "table": "rows"}, {"shared": "rows"})
    return max(equal(classifier(sgd, called_twice), words, way) for way in ways)


@full
def check_each_exchange_with_weights_that_come_late():
    deltas = []
    for name in easyscale.exchange.available():
        deltas.append(equal(classifier(sgd), classes(), options={"exchange": name, "bucket_bytes": 200}))
    return max(deltas)


@full
def check_a_model_that_its_first_step_builds():
    def build():
        return keras.Sequential([keras.layers.Dense(22, name="fc1"), keras.layers.Dense(10, name="last")])

    def make():
        keras.utils.set_random_seed(1)
        model = classifier(sgd, build)()
        model.build((None, 12))
        return model

    assert equal(make, classes(), {"fc1": "columns"}) <= 1e-5
    x, y = easyscale.shard(*classes())
    model, built = classifier(sgd, build)(), make()
    for one in (model, built):
        distribute = Distribute("ring", model_parallel=Split({"fc1": "columns"}))
        one.fit(x, y, batch_size=easyscale.local_batch(24), verbose=0, callbacks=[distribute])
    assert model.count_params() == built.count_params()


@full
def check_a_sum_of_losses_over_uneven_batches():
    x, _ = classes()
    return equal(classifier(sgd, loss=keras.losses.MeanSquaredError("sum"), metrics=[]), (x, 0.1 * x[:, :10]))


@full
def check_steps_without_a_graph():
    return equal(classifier(sgd, run_eagerly=True), classes())


@full
def check_the_projections_of_attention():
    """4 heads of 3 numbers each over 2 to 4 ranks."""

    def build():
        word = keras.Input((6,), dtype="int32")
        x = keras.layers.Embedding(23, 8)(word)
        x = x + keras.layers.MultiHeadAttention(4, 3)(x, x)
        x = x + keras.layers.EinsumDense("...x,xy->...y", 8, bias_axes="y", activation="relu", name="ffn")(x)
        return keras.Model(word, keras.layers.Dense(10)(keras.layers.Flatten()(x)))

    generator = np.random.default_rng(3)
    words = generator.integers(0, 23, (49, 6)), generator.integers(0, 10, 49)
    ways = {"query|key|value": "columns", "attention_output": "rows", "ffn": "columns"}
    return max(equal(classifier(optimizer, build), words, ways) for optimizer in (sgd, adam))


@full
def check_batch_normalization_over_all_samples_between_split_layers():
    """Workers without a batch take part in both, in the order of the others' step."""

    return equal(classifier(sgd, normalized), classes(), validates=True)


@full
def check_several_steps_at_a_time_and_weighted_samples():
    weights = np.linspace(0.1, 2.0, 96).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((*classes(96), weights)).batch(24 // comm.size)
    model, reference = classifier(sgd, steps_per_execution=2)(), classifier(sgd, steps_per_execution=2)()
    told = comm.all_gather_object([one.tolist() for one in model.get_weights()])
    reference.set_weights(list(map(np.array, told[0])))
    reference.fit(*classes(96), sample_weight=weights, batch_size=24, epochs=2, shuffle=False, verbose=0)
    part = easyscale.shard(data.unbatch()).batch(24 // comm.size)
    model.fit(part, epochs=2, verbose=0, callbacks=[Distribute("ring", model_parallel=Split(BOTH))])
    delta = largest_difference(model, reference)
    assert delta <= 1e-5, delta
    return delta
