"""Checkpoints of pipelines go on in pipelines, in other numbers of stages, and in one process; and the other way."""

import contextlib

import keras
import numpy as np
import pytest
from covering import full
from graphs import dense_net
from interrupted import Interrupts, folder_of_all
from pipeline_on_ranks import adam, classes, classifier, compare, compiled, largest_difference, scaled, sgd

import easyscale
from easyscale import called
from easyscale.callbacks import Distribute
from easyscale.errors import EasyScaleError
from easyscale.parallel import Pipeline

comm = easyscale.communicator.get()
DATA = classes(74)
EPOCHS = 3


def fit(model, folder, *callbacks, stages=comm.size, update=None, **options):
    """Train by pipelines, or in this process alone with `stages=1`."""
    called.names.clear()
    if stages == 1:
        distribute = Distribute(communicator="local", checkpoint=folder, every=1)
        x, y, batch = *DATA, 24
    else:
        pipeline = Pipeline(stages=stages, microbatches=4, cut="weights")
        distribute = Distribute("ring", update=update, model_parallel=pipeline, checkpoint=folder, every=1)
        x, y = easyscale.shard(*DATA)
        batch = easyscale.local_batch(24)
    options = {"epochs": EPOCHS, "shuffle": False, "verbose": 0, **options}
    return model.fit(x, y, batch_size=batch, callbacks=[distribute, *callbacks], **options)


def goes_on(make, first, second, steps=6, common=lambda: [], **options):
    """Train with an interruption, by two ways; compare with one process that is not interrupted."""
    with folder_of_all() as folder:
        for stages, callbacks in ((first, [Interrupts(steps)]), (second, [])):
            keras.utils.set_random_seed(5 + len(callbacks))
            model, history = make(), None
            if stages > 1 or comm.is_chief:
                with contextlib.suppress(InterruptedError):
                    history = fit(model, folder, *common(), *callbacks, stages=stages, **options)
            comm.barrier()
        delta = np.zeros(1)
        if comm.is_chief:
            keras.utils.set_random_seed(6)
            reference = make()
            given = {"epochs": EPOCHS, "shuffle": False, "verbose": 0, "callbacks": common()}
            expected = reference.fit(*DATA, batch_size=24, **given)
            delta[0] = largest_difference(model, reference)
            assert delta[0] <= 1e-5, f"{first} stages, then {second}: weights differ by {delta[0]}"
            compare(model, history.history, reference, expected.history, 1e-5)
        comm.broadcast(delta)
        return float(delta[0])


def check_pipelines_go_on_in_the_midst_of_an_epoch():
    stages = 2 if comm.size == 4 else comm.size
    updates = ("replicated", "sharded") if comm.size > stages else (None,)
    return max(goes_on(classifier(adam), stages, stages, update=update) for update in updates)


@full
def check_pipelines_go_on_at_the_end_of_an_epoch():
    stages = 2 if comm.size == 4 else comm.size
    return goes_on(classifier(sgd), stages, stages, steps=4)


@full
def check_one_process_goes_on_with_what_pipelines_have_written():
    return goes_on(classifier(adam), 2 if comm.size == 4 else comm.size, 1)


@full
def check_pipelines_go_on_with_what_one_process_has_written():
    return goes_on(classifier(adam), 1, 2 if comm.size == 4 else comm.size)


@full
def check_another_number_of_stages_goes_on():
    return goes_on(classifier(sgd), 4, 2) if comm.size == 4 else 0.0


def check_what_callbacks_remember_goes_on():
    """The best weights, of the first epoch, come back in the second; weights and averages are swapped as before."""

    def stops():
        return [keras.callbacks.EarlyStopping("loss", patience=1, min_delta=10.0, restore_best_weights=True)]

    def swaps():
        return [keras.callbacks.SwapEMAWeights(swap_on_epoch=True)]

    def averaging():
        return keras.optimizers.SGD(0.05, momentum=0.9, use_ema=True, ema_momentum=0.8)

    stages = 2 if comm.size == 4 else comm.size
    cases = (sgd, stops), (averaging, swaps)
    return max(goes_on(classifier(one), stages, stages, common=callbacks) for one, callbacks in cases)


@full
def check_loss_scales_go_on():
    return goes_on(classifier(scaled), 2 if comm.size == 4 else comm.size, 2 if comm.size == 4 else comm.size)


@full
def check_a_fit_that_had_ended_gives_its_weights_back():
    with folder_of_all() as folder:
        first, second = classifier(adam)(), classifier(adam)()
        stages = 2 if comm.size == 4 else comm.size
        fit(first, folder, stages=stages)
        history = fit(second, folder, stages=stages)
        assert len(history.history["loss"]) == EPOCHS
        for mine, theirs in zip(second.get_weights(), first.get_weights(), strict=True):
            np.testing.assert_array_equal(mine, theirs)
        for mine, theirs in zip(second.optimizer.variables, first.optimizer.variables, strict=True):
            np.testing.assert_array_equal(mine, theirs)


@full
def check_dropout_goes_on_where_it_was():
    """The counts of each stage's generators are in the file."""

    def build():
        kept = list(dense_net().layers)
        drops = [keras.layers.Dropout(0.3, seed=number) for number in range(2)]
        return keras.Sequential([keras.Input((12,)), *kept[:2], drops[0], *kept[2:-1], drops[1], kept[-1]])

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    make, stages = compiled(build, sgd, loss=loss), 2 if comm.size == 4 else comm.size
    whole, parts = make(), make()
    parts.set_weights(whole.get_weights())
    with folder_of_all() as folder:
        fit(whole, folder / "whole", stages=stages)
        with contextlib.suppress(InterruptedError):
            fit(parts, folder / "parts", Interrupts(6), stages=stages)
        rest = make()
        fit(rest, folder / "parts", stages=stages)
    delta = largest_difference(rest, whole)
    assert delta == 0
    return delta


@full
def check_a_checkpoint_of_another_model_is_refused():
    with folder_of_all() as folder:
        stages = 2 if comm.size == 4 else comm.size
        fit(classifier(sgd)(), folder, stages=stages, epochs=1)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        other = compiled(lambda: dense_net((32, 24, 18, 10)), sgd, loss=loss)()
        with pytest.raises(EasyScaleError, match="must be of the same model"):
            fit(other, folder, stages=stages)
        with pytest.raises(EasyScaleError, match="must be of the same optimizers"):
            fit(classifier(adam)(), folder, stages=stages)
