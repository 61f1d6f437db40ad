"""State of layers beside the weights that are trained: what `adapt` makes, and what layers of one's own assign."""

import warnings

import keras
import numpy as np
import tensorflow as tf
from covering import full
from models import assert_equal_ranks

import easyscale
from easyscale.callbacks import Distribute

comm = easyscale.communicator.get()
COUNT = 101
generator = np.random.default_rng(0)
NUMBERS = (generator.normal(size=(COUNT, 3)) * [1, 5, 10] + [0, 3, -2]).astype("float32")
TEXTS = np.array([" ".join(f"w{word}" for word in generator.zipf(1.6, 5)) for _ in range(COUNT)])
IDS = generator.zipf(1.7, COUNT)


def _adapted(numbers, texts, ids, dataset):
    """Return what layers make of themselves that are adapted to data: arrays of numbers, and vocabularies."""
    normalization, of_dataset = keras.layers.Normalization(), keras.layers.Normalization()
    normalization.adapt(numbers)
    of_dataset.adapt(dataset.map(lambda numbers, texts: numbers))
    bins, of_view = keras.layers.Discretization(num_bins=7), keras.layers.Discretization(num_bins=7)
    bins.adapt(numbers)
    of_view.adapt(numbers[:, 0])
    lookup, weighted = keras.layers.IntegerLookup(), keras.layers.TextVectorization(output_mode="tf_idf")
    lookup.adapt(ids)
    weighted.adapt(texts)
    words = keras.layers.TextVectorization()
    words.adapt(dataset.map(lambda numbers, texts: texts), steps=3)
    space = keras.utils.FeatureSpace({"number": "float_normalized", "text": "string_categorical"})
    space.adapt(tf.data.Dataset.from_tensor_slices({"number": numbers[:, 0], "text": texts}))
    layers = [normalization, of_dataset, space.preprocessors["number"]]
    found = [np.ravel(moment) for layer in layers for moment in (layer.mean, layer.variance)]
    found += [np.array(layer.bin_boundaries) for layer in (bins, of_view)]
    vocabularies = [layer.get_vocabulary() for layer in (lookup, weighted, words, space.preprocessors["text"])]
    return [*found, np.ravel(weighted(["w1 w2 w3"]))], vocabularies


def check_layers_that_are_adapted_to_parts_are_adapted_to_all_of_the_data():
    whole = tf.data.Dataset.from_tensor_slices((NUMBERS, TEXTS))
    # Three batches of all are the first three of each: as many elements as `steps` go through on one process.
    expected = _adapted(NUMBERS, TEXTS, IDS, whole.batch(10 * comm.size))
    found = _adapted(*easyscale.shard(NUMBERS, TEXTS, IDS), easyscale.shard(whole).batch(10))
    assert found[1] == expected[1]
    for ours, theirs in zip(found[0], expected[0], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def check_layers_that_are_adapted_to_a_dataset_of_batches():
    batches = [NUMBERS[start : start + 12] for start in range(0, COUNT, 12)]

    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return len(batches)

        def __getitem__(self, index):
            return batches[index], np.zeros(len(batches[index]))

    layer = keras.layers.Normalization()
    layer.adapt(easyscale.shard(Batches()))
    np.testing.assert_allclose(np.ravel(layer.mean), NUMBERS.mean(axis=0), rtol=1e-5, atol=1e-5)


def _fit(model, data, **distribute):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", easyscale.EasyScaleWarning)
        model.fit(*data, batch_size=4, verbose=0, shuffle=False, epochs=2, callbacks=[Distribute(**distribute)])
    return [str(warning.message) for warning in caught if isinstance(warning.message, easyscale.EasyScaleWarning)]


def check_layers_with_other_state_on_each_rank_begin_with_the_chiefs():
    x = NUMBERS[:24] + comm.rank  # not known as a part
    beside, lookup = keras.layers.Normalization(name="beside"), keras.layers.IntegerLookup()
    normalization, bins = keras.layers.Normalization(), keras.layers.Discretization(num_bins=3)
    for layer in (beside, normalization, bins):
        layer.adapt(x)
    lookup.adapt(np.arange(5) * (1 + comm.rank))
    inputs = keras.Input((3,))
    parts = [
        normalization(inputs),
        keras.layers.Rescaling(1.0)(bins(inputs)),
        keras.layers.Rescaling(1.0)(lookup(keras.ops.cast(inputs, "int64"))),
    ]
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(parts)))
    model.compile("sgd", "mse")
    easyscale.shard(np.zeros(comm.size))  # a script that divides data
    told = _fit(model, (x, x[:, :1]))
    chiefs = [message for message in told if "same state on all ranks" in message]
    assert len(chiefs) == (2 if comm.is_chief else 0), told
    assert not chiefs or "'beside', which" in chiefs[0] and "It is no layer of the model" in chiefs[0]
    assert not chiefs or "All ranks have the chief's now" in chiefs[1]
    np.testing.assert_allclose(np.ravel(normalization.mean), NUMBERS[:24].mean(axis=0), rtol=1e-4, atol=1e-4)
    assert lookup.get_vocabulary() == [-1, 4, 3, 2, 1, 0]
    assert_equal_ranks([np.ravel(bins.bin_boundaries), model.predict(NUMBERS, verbose=0)])


class Centre(keras.layers.Layer):
    """Moves a mean by each batch, as a codebook or a queue does."""

    def __init__(self, aggregation):
        super().__init__()
        self._aggregation = aggregation

    def build(self, shape):
        options = {} if self._aggregation is None else {"aggregation": self._aggregation}
        self.mean = self.add_weight(
            shape=(shape[-1],), initializer="zeros", trainable=False, name="moving_mean", **options
        )

    def call(self, x, training=False):
        if training:
            self.mean.assign(0.5 * self.mean + 0.5 * keras.ops.mean(x, axis=0))
        return x - self.mean


def _centred(aggregation):
    model = keras.Sequential([keras.Input((3,)), Centre(aggregation), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.001), "mse")
    return model


def check_a_layer_with_a_function_among_its_arguments_is_the_same_on_all_ranks():
    def lower(text):
        return tf.strings.lower(text)

    inputs = keras.Input((1,), dtype="string")
    words = keras.layers.TextVectorization(
        standardize=lower, split=lambda text: tf.strings.split(text), output_sequence_length=2, vocabulary=["a", "b"]
    )
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Embedding(4, 2)(words(inputs))[:, 0]))
    model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensor_slices((np.array([["A b"], ["b"]]), np.ones((2, 1)))).batch(2)
    model.fit(data, verbose=0, callbacks=[Distribute("ring")])
    assert_equal_ranks(model.get_weights())


def check_layers_that_are_given_other_vocabularies_are_refused():
    words = ["a", "b", "c"] if comm.rank == 0 else ["a", "c", "b"]
    inputs = keras.Input((1,), dtype="string")
    ids = keras.layers.StringLookup(vocabulary=words, name="words")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Embedding(4, 2)(ids)[:, 0]))
    model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensor_slices((np.array([["a"], ["b"]]), np.ones((2, 1)))).batch(2)
    try:
        model.fit(data, verbose=0, callbacks=[Distribute("ring")])
    except easyscale.errors.DesyncError as error:
        assert "layers must have the same arguments on all ranks. Received: StringLookup 'words'" in str(error), error
    else:
        raise AssertionError("the models differ")


def check_own_state_is_the_chiefs_at_the_end_of_an_epoch_and_that_is_said_once():
    x = NUMBERS[:24] + comm.rank
    told = _fit(model := _centred(None), (x, x[:, :1]))
    said = [message for message in told if "non-trainable weights must be the same" in message]
    assert len(said) == comm.is_chief, told
    assert not said or "/moving_mean`, which a layer assigns" in said[0]
    assert_equal_ranks(model.get_weights())
    expected = np.zeros(3)
    for start in [*range(0, 24, 4)] * 2:
        expected = 0.5 * expected + 0.5 * NUMBERS[start : start + 4].mean(axis=0)
    np.testing.assert_allclose(model.layers[0].mean, expected, rtol=1e-4)
    assert not [message for message in _fit(_centred("only_first_replica"), (x, x[:, :1])) if "assigns" in message]


@full
def check_own_state_that_is_a_mean_is_averaged_in_each_step():
    x = NUMBERS[:24] + comm.rank
    model = _centred("mean")
    assert not [message for message in _fit(model, (x, x[:, :1])) if "assigns" in message]
    assert_equal_ranks(model.get_weights())
    expected = np.zeros(3)
    for start in [*range(0, 24, 4)] * 2:
        batch = NUMBERS[start : start + 4].mean(axis=0) + (comm.size - 1) / 2
        expected = 0.5 * expected + 0.5 * batch
    np.testing.assert_allclose(model.layers[0].mean, expected, rtol=1e-4)


class Maximum(keras.metrics.Metric):
    def __init__(self, name):
        super().__init__(name=name)
        self.top = self.add_variable((), "zeros", name="top")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.top.assign(keras.ops.maximum(self.top, keras.ops.max(keras.ops.abs(y_pred))))

    def result(self):
        return self.top


class MeanError(keras.metrics.Mean):
    def update_state(self, y_true, y_pred, sample_weight=None):
        super().update_state(keras.ops.abs(y_true - y_pred))


def check_a_metric_whose_state_is_no_sum_is_named():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, "sigmoid")])
    metrics = [Maximum("top"), MeanError("error"), "mae", keras.metrics.TruePositives()]
    model.compile("sgd", "mse", metrics=metrics)
    told = _fit(model, (NUMBERS[comm.rank :: comm.size][:24], np.ones((24, 1))))
    named = [message for message in told if "the state of a metric must be a sum" in message]
    assert len(named) == comm.is_chief, told
    assert not named or "'top' of Maximum" in named[0]
