"""Checkpoints of a model that is built in `scope()`: each rank has, copies and gets back its stage's part only."""

import contextlib

import keras
import numpy as np
import pytest
from covering import full
from graphs import dense_net, tied
from interrupted import Interrupts, folder_of_all
from scope_on_ranks import STAGES, WORDS, X, Y, adam, compiled, distance, own_sizes, pipeline, sgd, sizes

import easyscale
from easyscale import called
from easyscale.callbacks import Distribute
from easyscale.checkpoint.folder import Checkpoints
from easyscale.errors import EasyScaleError
from easyscale.parallel.pipeline.deferred import has_value
from easyscale.training.pipelined.stage_copies import StageCopies

comm = easyscale.communicator.get()
EPOCHS = 3


def fit(model, folder, *callbacks, stages=STAGES, data=(X, Y), update=None, **options):
    """Train by so many stages, or in this process alone with `stages=1`."""
    called.names.clear()
    batch = 24
    if stages == 1:
        distribute = Distribute(communicator="local", checkpoint=folder, every=1)
    else:
        distribute = Distribute(
            "ring", update=update, model_parallel=pipeline(stages=stages), checkpoint=folder, every=1
        )
        data, batch = easyscale.shard(*data), easyscale.local_batch(batch)
    options = {"epochs": EPOCHS, "shuffle": False, "verbose": 0, **options}
    return model.fit(*data, batch_size=batch, callbacks=[distribute, *callbacks], **options)


def model_of(build, optimizer, stages, in_scope):
    return compiled(build, optimizer, **({"scope": pipeline(stages=stages).scope} if in_scope else {}))


def goes_on(first, second, build=dense_net, optimizer=adam, data=(X, Y), **options):
    """Train with an interruption, each part by so many stages, in a scope or not; compare with one process."""
    with folder_of_all() as folder:
        for (stages, in_scope), callbacks in ((first, [Interrupts(6)]), (second, [])):
            model = model_of(build, optimizer, stages, in_scope)
            if stages > 1 or comm.is_chief:
                with contextlib.suppress(InterruptedError):
                    history = fit(model, folder, *callbacks, stages=stages, data=data, **options)
            comm.barrier()
    reference = compiled(build, optimizer)
    expected = reference.fit(*data, batch_size=24, epochs=EPOCHS, shuffle=False, verbose=0)
    if second == (1, False):
        if comm.is_chief:
            pairs = zip(model.get_weights(), reference.get_weights(), strict=True)
            assert max(float(np.abs(ours - theirs).max()) for ours, theirs in pairs) <= 1e-5
    else:
        delta = distance(model, reference)
        assert delta <= 1e-5, delta
        for name, values in expected.history.items():
            np.testing.assert_allclose(history.history[name], values, rtol=1e-4, atol=1e-5, err_msg=name)


@full
def check_it_goes_on_in_the_midst_of_an_epoch_with_the_steps_of_one_process():
    for update in ("replicated", "sharded") if comm.size > STAGES else (None,):
        goes_on((STAGES, True), (STAGES, True), update=update)


@full
def check_a_weight_of_several_stages():
    goes_on((STAGES, True), (STAGES, True), tied, sgd, WORDS)


def check_loss_scales():
    goes_on((STAGES, True), (STAGES, True), optimizer=lambda: keras.optimizers.LossScaleOptimizer(adam()))


@full
def check_one_process_goes_on():
    goes_on((STAGES, True), (1, False))


@full
def check_it_goes_on_with_what_one_process_has_written():
    goes_on((1, False), (STAGES, True))


@full
def check_pipelines_of_whole_models_go_on_and_the_other_way():
    goes_on((STAGES, True), (STAGES, False))
    goes_on((STAGES, False), (STAGES, True))


@full
def check_another_number_of_stages_goes_on():
    if comm.size == 4:
        goes_on((4, True), (2, True))
        goes_on((2, True), (4, True))


def own_values(model):
    """Those that this rank has, but for counts of random numbers, which all ranks have of all stages."""
    variables = [one for one in [*model.variables, *model.optimizer.variables] if has_value(one)]
    return [np.array(one) for one in variables if one.name != "seed_generator_state"]


@full
def check_weights_are_those_of_training_without_an_interruption_to_the_last_bit():
    def build():
        kept = list(dense_net().layers)
        drops = [keras.layers.Dropout(0.3, seed=number) for number in range(2)]
        return keras.Sequential([keras.Input((12,)), *kept[:2], drops[0], *kept[2:-1], drops[1], kept[-1]])

    for update in ("replicated", "sharded") if comm.size > STAGES else (None,):
        whole, parts, rest = (model_of(build, adam, STAGES, in_scope=True) for _ in range(3))
        with folder_of_all() as folder:
            fit(whole, folder / "whole", update=update)
            with contextlib.suppress(InterruptedError):
                fit(parts, folder / "parts", Interrupts(6), update=update)
            fit(rest, folder / "parts", update=update)
        for ours, theirs in zip(own_values(rest), own_values(whole), strict=True):
            np.testing.assert_array_equal(ours, theirs)


@full
def check_the_file_is_that_of_one_process():
    """By its names, shapes and types."""
    with folder_of_all() as folder:
        fit(model_of(dense_net, adam, STAGES, in_scope=True), folder / "scope", epochs=1)
        if comm.is_chief:
            fit(compiled(), folder / "alone", stages=1, epochs=1)
            found, expected = (Checkpoints(folder / name).read()[0] for name in ("scope", "alone"))
            forms = [{name: (one.shape, one.dtype) for name, one in each.arrays.items()} for each in (found, expected)]
            for each in forms:
                del each["metrics"]  # a row for each pipeline
            assert forms[0] == forms[1]
            names = [[path.split("/")[-2:] for path, _ in each.about["weights"]] for each in (found, expected)]
            assert names[0] == names[1]
            for name in ("weight/0", "weight/7", "optimizer/0/2"):
                np.testing.assert_allclose(found.arrays[name], expected.arrays[name], rtol=0, atol=1e-5)


@full
def check_a_rank_copies_and_gets_its_part_only():
    """In bytes: of weights and of Adam's state, which is twice as large."""
    held, given = [], []
    answer, hand_out = StageCopies.answer, StageCopies.hand_out

    def noted_answer(copies):
        held.append(sum(one.nbytes for one in copies._held.values()))
        answer(copies)

    def noted_hand_out(copies, arrays):
        given.append(hand_out(copies, arrays))
        return given[-1]

    StageCopies.answer, StageCopies.hand_out = noted_answer, noted_hand_out
    try:
        with folder_of_all() as folder:
            for _ in range(2):
                model = model_of(dense_net, adam, STAGES, in_scope=True)
                fit(model, folder, epochs=1)
    finally:
        StageCopies.answer, StageCopies.hand_out = answer, hand_out
    own = 4 * sum(own_sizes(model))
    expected = 3 * own if comm.rank < STAGES else 0
    assert expected <= held[0] <= expected + 16 * (comm.rank == 0), (held, own)  # with steps so far and learning rate
    (arrays,) = given
    got = sum(one.nbytes for name, one in arrays.items() if name.partition("/")[0] in ("weight", "optimizer"))
    assert 3 * own <= got <= 3 * own + 16, (got, own)
    assert sizes(model.variables) == own_sizes(model)


@full
def check_a_fit_that_had_ended_gives_its_weights_back():
    with folder_of_all() as folder:
        first, second = (model_of(dense_net, adam, STAGES, in_scope=True) for _ in range(2))
        fit(first, folder)
        history = fit(second, folder)
        assert len(history.history["loss"]) == EPOCHS
        for ours, theirs in zip(own_values(second), own_values(first), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def check_what_cannot_go_on_is_refused():
    with folder_of_all() as folder:
        fit(model_of(dense_net, sgd, STAGES, in_scope=True), folder, epochs=1)
        other = model_of(lambda: dense_net((32, 24, 18, 10)), sgd, STAGES, in_scope=True)
        with pytest.raises(EasyScaleError, match="must be of the same model"):
            fit(other, folder)
        with pytest.raises(EasyScaleError, match="must be of the same optimizers"):
            fit(model_of(dense_net, adam, STAGES, in_scope=True), folder)
        stops = keras.callbacks.EarlyStopping("loss", restore_best_weights=True)
        with pytest.raises(ValueError, match="the best weights of a stage are on its rank. Received: Early"):
            fit(model_of(dense_net, sgd, STAGES, in_scope=True), folder, stops)
