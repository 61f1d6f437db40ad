"""Calls of a model by stages that are threads."""

import keras
import numpy as np
import pytest
from graphs import dense_net, two_by_two, u_net

import easyscale
from easyscale import backend as backends
from easyscale.parallel.pipeline.cut import cut_model
from easyscale.parallel.pipeline.inference import CALL, Inference

GENERATOR = np.random.default_rng(0)


def inputs_of(model, count):
    cut = cut_model(model, stages=1)
    drawn = [GENERATOR.normal(size=(count, *one.shape[1:])).astype("float32") for one in cut.graph.inputs]
    return keras.tree.pack_sequence_as(cut.graph.model.input, drawn)


def answers(what):
    raise AssertionError(f"nobody asks here. Received: {what}")


@pytest.mark.parametrize("build", [dense_net, u_net, two_by_two])
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_outputs_are_those_of_the_whole_model_for_the_first_stages_inputs(run_ranks, build, stages):
    model = build()
    cut, batches = cut_model(model, stages=stages), [inputs_of(model, count) for count in (6, 6, 3, 6, 1)]

    def on_rank(comm):
        inference, found = Inference(cut, comm, backends.get(), answers), []
        with inference.explained():
            for batch in batches:
                own = batch if comm.rank == 0 else keras.tree.map_structure(np.zeros_like, batch)
                own = keras.tree.map_structure(keras.ops.convert_to_tensor, own)
                inference.begin(own)
                outputs, _ = inference.forward(own, training=False, with_losses=False)
                found.append(keras.tree.flatten(inference.share(outputs)))
        return found

    for found in run_ranks(stages, on_rank):
        for outputs, batch in zip(found, batches, strict=True):
            for ours, theirs in zip(outputs, keras.tree.flatten(model(batch)), strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_labels_of_the_first_stage_and_losses_of_all_come_to_the_last(run_ranks):
    model, stages = dense_net(kernel_regularizer="l2", activity_regularizer="l1"), 3
    cut, batch = cut_model(model, stages=stages), inputs_of(model, 6)
    labels = np.arange(6.0)
    model(batch, training=False)
    of_last = sum(float(keras.ops.sum(one.regularizer(one))) for one in regularized(cut.stages[-1].used))
    expected = sum(float(loss) for loss in model.losses)

    def on_rank(comm):
        inference = Inference(cut, comm, backends.get(), answers)
        own = keras.ops.convert_to_tensor(batch)
        (came,) = inference.begin(own, [keras.ops.convert_to_tensor(labels * (comm.rank == 0))])
        _, added = inference.forward(own, training=False, with_losses=True)
        inference.finish()
        return np.asarray(came), float(added)

    came, added = run_ranks(stages, on_rank)[-1]
    np.testing.assert_array_equal(came, labels)
    of_layers = added_of(model, cut.stages[-1], batch)
    np.testing.assert_allclose(added + of_last + of_layers, expected, rtol=1e-5)


def regularized(variables):
    return [variable for variable in variables if variable.regularizer is not None]


def added_of(model, part, batch):
    """What the layers of a stage add to the loss by themselves."""
    model(batch, training=False)
    return sum(float(loss) for layer in part.layers for loss in getattr(layer, "_losses", ()))


def test_what_is_sent_is_what_the_docstring_says(run_ranks):
    model, stages, samples = dense_net(), 3, 6
    cut, batch = cut_model(model, stages=stages), inputs_of(model, samples)

    def on_rank(comm):
        inference = Inference(cut, comm, backends.get(), answers)
        own, labels = keras.ops.convert_to_tensor(batch), [keras.ops.zeros((samples,))]
        sent = []
        for wanted in ("outputs", "labels"):
            before = comm.sent.bytes
            inference.begin(own, labels if wanted == "labels" else ())
            outputs, _ = inference.forward(own, training=False, with_losses=wanted == "labels")
            if wanted == "outputs":
                inference.share(outputs)
            inference.finish()
            sent.append(comm.sent.bytes - before)
        return sent

    crossing = [sum(one.nbytes for one in stage.sends) * samples for stage in cut.stages]
    for_outputs, for_labels = zip(*run_ranks(stages, on_rank), strict=True)
    outputs = 10 * 4 * samples
    assert for_outputs == (8 * 2 + crossing[0], crossing[1], 2 * (outputs + 2 * 8))
    assert for_labels == (8 * 2 + crossing[0] + 4 * samples + 8, crossing[1] + 8, 0)


def test_stages_with_other_numbers_of_samples_are_told_so(run_ranks):
    cut = cut_model(dense_net(), stages=2)

    def on_rank(comm):
        inference = Inference(cut, comm, backends.get(), answers)
        own = keras.ops.zeros((6 - comm.rank, 12))
        if comm.rank == 0:
            inference.begin(own)
            inference.finish()
            return ""
        with pytest.raises(easyscale.DesyncError) as raised, inference.explained():
            inference.begin(own)
        return str(raised.value)

    _, message = run_ranks(2, on_rank)
    assert message.startswith("all stages of a pipeline must be given as many samples. Received: a batch of 6 on the")
    assert "\n" not in message


def test_a_stage_that_waits_for_a_call_does_what_it_is_asked_before(run_ranks):
    cut, asked = cut_model(dense_net(), stages=2), []

    def on_rank(comm):
        if comm.rank == 0:
            for row in (7, 3, CALL - 2):
                comm.send(np.array([row]), 1)
            return
        inference = Inference(cut, comm, backends.get(), asked.append)
        inference.begin(keras.ops.zeros((2, 12)), ())

    run_ranks(2, on_rank)
    assert asked == [7, 3]
