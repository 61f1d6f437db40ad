"""Stages as threads, whose sends end when they are received: together they make the gradients of the whole model."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from graphs import dense_net, two_by_two, u_net

from easyscale import backend as backends
from easyscale import keras_internals
from easyscale.parallel.pipeline import schedules
from easyscale.parallel.pipeline.batch import Batch, sizes_of
from easyscale.parallel.pipeline.cut import cut_model
from easyscale.parallel.pipeline.forward_pass import ForwardPass
from easyscale.parallel.pipeline.stage import Stage

GENERATOR = np.random.default_rng(0)


def squares(outputs, labels, numbers, added):
    """A mean over samples."""
    outputs = keras.tree.flatten(outputs)
    return sum(keras.ops.mean(keras.ops.square(one - label)) for one, label in zip(outputs, labels, strict=True))


def gradients_in_stages(run_ranks, model, inputs, labels, stages, microbatches, schedule, loss=squares):
    cut = cut_model(model, stages=stages)
    forms = [(one.shape[1:], one.dtype) for one in labels]

    def on_rank(comm):
        stage = Stage(cut, comm, schedules.get(schedule), backends.get(), loss, forms)
        first = comm.rank == 0
        count = len(labels[0])
        batch = Batch(count, count, microbatches, inputs if first else (), labels if first else ())
        taken = [stage.step(batch) for _ in range(2)]  # nothing of the first is left in the second
        return zip(cut.stages[comm.rank].trainable_variables, *taken, strict=True)

    found = {id(variable): one for rank in run_ranks(stages, on_rank) for variable, *one in rank}
    return [[keras.ops.convert_to_numpy(one) for one in found[id(variable)]] for variable in model.trainable_variables]


def gradients_of_whole(model, inputs, labels, loss=squares):
    passes = backends.get().stage_passes(
        lambda tensors: [loss(model(keras.tree.pack_sequence_as(structure(model), tensors)), labels, [], [])],
        [((None, *one.shape[1:]), one.dtype) for one in inputs],
        [],
        model.trainable_variables,
    )
    passes.forward(0, inputs)
    passes.backward(0, [np.ones((), "float32")])
    return [keras.ops.convert_to_numpy(one) for one in passes.take()]


def structure(model):
    return cut_model(model, stages=1).graph.model.input


def data_of(model, count):
    def draw(tensors):
        return [GENERATOR.normal(size=(count, *one.shape[1:])).astype("float32") for one in tensors]

    return draw(model.inputs), draw(keras.tree.flatten(cut_model(model, stages=1).graph.outputs))


@pytest.mark.parametrize("build", [dense_net, u_net, two_by_two])
@pytest.mark.parametrize("stages, microbatches", [(2, 1), (2, 3), (3, 4), (4, 8)])
@pytest.mark.parametrize("schedule", schedules.available())
def test_stages_make_the_gradients_of_the_whole_model(run_ranks, build, stages, microbatches, schedule):
    model = build()
    inputs, labels = data_of(model, 10)
    found = gradients_in_stages(run_ranks, model, inputs, labels, stages, microbatches, schedule)
    for (first, second), expected in zip(found, gradients_of_whole(model, inputs, labels), strict=True):
        np.testing.assert_allclose(first, expected, atol=1e-6)
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("watched", [[], [0]])
def test_a_backward_pass_ends_where_nothing_wants_gradients(dtype, watched):
    """Behind it a split layer would send gradients to other ranks, which is a call of Python as here."""
    asked, weight = [], keras.Variable(np.ones(3), dtype=dtype)

    @tf.custom_gradient
    def sends(tensor):
        return tf.identity(tensor), lambda gradient: tf.numpy_function(_noting(asked), [gradient], gradient.dtype)

    passes = backends.get().stage_passes(
        lambda tensors: [sends(tensors[0]) * weight], [((None, 3), np.dtype(dtype))], watched, [weight]
    )
    x = GENERATOR.normal(size=(2, 3)).astype(dtype)
    (result,) = passes.forward(0, [x])
    np.testing.assert_array_equal(result, x)
    found = passes.backward(0, [np.ones((2, 3), dtype)])
    assert (len(asked), len(found)) == (len(watched), len(watched))
    np.testing.assert_allclose(np.array(passes.take()[0]), np.conj(x).sum(axis=0), rtol=1e-2)


def _noting(asked):
    return lambda gradient: asked.append(gradient.shape) or gradient


def test_a_tensor_that_goes_to_two_stages_gets_both_gradients(run_ranks):
    inputs = keras.Input((4,))
    first = keras.layers.Dense(4, name="first")(inputs)
    second = keras.layers.Dense(4, name="second")(first)
    third = keras.layers.Dense(4, name="third")(keras.layers.Add()([first, second]))
    model = keras.Model(inputs, keras.layers.Add()([first, third]))
    cut = cut_model(model, names=["first", "second"])
    assert sorted((one.source, one.target) for stage in cut.stages for one in stage.sends) == [(0, 1), (0, 2), (1, 2)]
    inputs, labels = data_of(model, 6)
    found = gradients_in_stages(run_ranks, model, inputs, labels, 3, 2, "1f1b")
    for (taken, _), expected in zip(found, gradients_of_whole(model, inputs, labels), strict=True):
        np.testing.assert_allclose(taken, expected, atol=1e-6)


@pytest.mark.parametrize("samples, microbatches", [(1, 8), (7, 3), (8, 4), (9, 4), (24, 1)])
def test_micro_batches_are_as_even_as_can_be_and_none_is_empty(samples, microbatches):
    sizes = sizes_of(samples, microbatches)
    assert sum(sizes) == samples
    assert len(sizes) == min(samples, microbatches)
    assert max(sizes) - min(sizes) <= 1
    parts = [Batch(samples, samples, microbatches).part(number) for number in range(len(sizes))]
    assert np.concatenate([np.arange(samples)[part] for part in parts]).tolist() == list(range(samples))


def test_a_mask_crosses_with_what_it_masks(run_ranks):
    """To the second stage with the words, and to the third, which has the loss."""
    inputs = keras.Input((5,), dtype="int32")
    x = keras.layers.Embedding(10, 4, mask_zero=True, name="words")(inputs)
    x = keras.layers.LSTM(4, return_sequences=True, name="memory")(x)
    model = keras.Model(inputs, keras.layers.Dense(2, name="last")(x))
    cut = cut_model(model, names=["words", "memory"])
    assert [one.target for stage in cut.stages for one in stage.sends if one.dtype == bool] == [1, 2]
    words, (label,) = GENERATOR.integers(0, 3, (6, 5)).astype("int32"), data_of(model, 6)[1]

    def masked(outputs, labels, numbers, added):
        mask = keras_internals.mask_of(outputs)[..., None]
        return keras.ops.mean(keras.ops.where(mask, keras.ops.square(outputs - labels[0]), 0))

    found = gradients_in_stages(run_ranks, model, [words], [label], 3, 2, "1f1b", masked)
    for (taken, _), expected in zip(found, gradients_of_whole(model, [words], [label], masked), strict=True):
        np.testing.assert_allclose(taken, expected, atol=1e-6)


class Passes(keras.layers.Layer):
    def call(self, x):
        return x


@pytest.mark.parametrize(
    ("last_of_first", "stage", "came"),
    [("passes", 0, np.ones((6, 5), "int32")), ("words", 1, np.ones((6, 5, 4), "float32"))],
)
def test_a_layer_that_keeps_a_mask_of_another_stage_must_say_so(last_of_first, stage, came):
    """Keras says that it loses the mask, and keeps it where the layer returns what it was given."""

    def forward(supports_masking):
        inputs = keras.Input((5,), dtype="int32")
        passes = Passes(name="passes")
        passes.supports_masking = supports_masking
        x = passes(keras.layers.Embedding(10, 4, mask_zero=True, name="words")(inputs))
        cut = cut_model(keras.Model(inputs, keras.layers.GRU(4)(x)), names=[last_of_first])
        tensors = [keras.ops.convert_to_tensor(came)] * len(ForwardPass(cut, stage, squares, 0).inputs)
        numbers = [keras.ops.zeros(2)] * stage
        return ForwardPass(cut, stage, lambda *_: 0.0, 0)([*tensors, *numbers])

    with pytest.warns(UserWarning, match="does not support masking"):
        with pytest.raises(ValueError, match="must say that it supports its mask.*'passes'"):
            forward(supports_masking=False)
    assert forward(supports_masking=True)
