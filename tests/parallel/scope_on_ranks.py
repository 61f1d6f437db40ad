"""A model that is built in the `scope()` of a pipeline: no rank ever has the weights of another's stage."""

import contextlib
import tempfile
from pathlib import Path

import keras
import numpy as np
import pytest
from covering import full
from graphs import dense_net, losses_of_layers, tied

import easyscale
from easyscale import called
from easyscale.backend.tensorflow import gradient_sums
from easyscale.callbacks import Distribute
from easyscale.parallel import Pipeline
from easyscale.parallel.pipeline.cut import cut_model
from easyscale.parallel.pipeline.deferred import has_value, make
from easyscale.parallel.pipeline.inference import CALL

comm = easyscale.communicator.get()
STAGES = 2 if comm.size % 2 == 0 else 3
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(72, 12)).astype("float32")
Y = GENERATOR.integers(0, 10, 72)
WORDS = GENERATOR.integers(0, 20, (72, 6)), GENERATOR.integers(0, 20, (72, 6))


def adam():
    return keras.optimizers.Adam(0.01)


def muon():  # which knows weights by their values
    return keras.optimizers.Muon(0.01)


def sgd():
    return keras.optimizers.SGD(0.05, momentum=0.9)


def pipeline(**options):
    return Pipeline(**{"stages": STAGES, "microbatches": 4, "cut": "weights", **options})


def compiled(build=dense_net, optimizer=adam, scope=contextlib.nullcontext, **options):
    keras.utils.set_random_seed(1)
    with scope():
        model = build()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer(), **{"loss": loss, "metrics": ["accuracy"], **options})
    return model


def deferred(build=dense_net, **options):
    return compiled(build, scope=pipeline().scope, **options)


def fit(model, *callbacks, data=(X, Y), stages=None, update=None, **options):
    """Train a model, and with `stages` by pipelines."""
    options = {"epochs": 2, "batch_size": 24, "shuffle": False, "verbose": 0, **options}
    if stages is not None:
        called.names.clear()
        callbacks = [Distribute("ring", update=update, model_parallel=stages), *callbacks]
        data = easyscale.shard(*data)
        options["batch_size"] = easyscale.local_batch(options["batch_size"])
    return model.fit(*data, callbacks=list(callbacks), **options)


def values_of(model):
    return [np.array(variable) for variable in [*model.weights, *model.optimizer.variables]]


def distance(model, reference):
    """Return how far a file of all ranks is from what one process has, which gets the values of the file."""
    expected, found = values_of(reference), 0.0
    with tempfile.TemporaryDirectory() as folder:
        model.save_weights(Path(folder, "all.weights.h5"))
        if comm.is_chief:
            reference.load_weights(Path(folder, "all.weights.h5"))
            pairs = zip(values_of(reference), expected, strict=True)
            found = max(float(np.abs(ours - theirs).max()) for ours, theirs in pairs)
    return comm.all_gather_object(found)[0]


def sizes(variables):
    return [int(np.prod(variable.shape)) * has_value(variable) for variable in variables]


def own_sizes(model):
    stage = cut_model(model, STAGES).stages[comm.rank % STAGES]
    own = {id(variable) for variable in stage.used}
    return [int(np.prod(one.shape)) * (id(one) in own or one.dtype == "int64") for one in model.variables]


def equal(build=dense_net, optimizer=adam, stages=None, data=(X, Y), update=None, **options):
    """Train for an epoch, twice, and compare a file with what one process has."""
    model, reference = deferred(build, optimizer=optimizer, **options), compiled(build, optimizer, **options)
    for _ in range(2):
        history = fit(model, stages=stages or pipeline(), data=data, update=update, epochs=1)
        expected = fit(reference, data=data, epochs=1)
        np.testing.assert_allclose(history.history["loss"], expected.history["loss"], rtol=1e-4)
    delta = distance(model, reference)
    assert delta <= 1e-5, delta


# The steps


@full
def check_adam_takes_the_steps_of_one_process():
    equal()


@full
def check_sgd_with_momentum_and_a_cut_by_time():
    equal(optimizer=sgd, stages=pipeline(cut="time"))


@full
def check_sharded_update():
    equal(stages=pipeline(schedule="gpipe"), update="sharded")


@full
def check_losses_of_layers():
    equal(losses_of_layers)


@full
def check_a_weight_of_several_stages():
    equal(tied, sgd, data=WORDS)


@full
def check_an_optimizer_that_scales_the_loss():
    equal(optimizer=lambda: keras.optimizers.LossScaleOptimizer(adam()))


@full
def check_an_optimizer_that_knows_weights_by_their_values():
    equal(optimizer=muon)


@full
def check_gradients_that_are_added_up_in_the_backward_pass():
    """Those of large weights are: here all are large. Of an embedding's, those of rows are not."""
    large = gradient_sums.LARGE
    gradient_sums.LARGE = 1
    try:
        equal()
        equal(tied, sgd, data=WORDS)
    finally:
        gradient_sums.LARGE = large


# Who has what


@full
def check_a_rank_has_its_stage_only():
    model = deferred()
    assert sizes(model.variables) == [0] * len(model.variables)
    fit(model, stages=pipeline())
    assert sizes(model.variables) == own_sizes(model)
    states = model.optimizer.variables[2:]  # behind the steps so far and the learning rate
    assert sizes(states) == np.repeat(own_sizes(model), 2).tolist()
    assert "dense_0" in str(model.get_layer("dense_0").kernel.path)


@full
def check_what_another_stage_has_is_not_read():
    model = deferred()
    kept = model.get_weights()
    model.set_weights(kept)
    reads = [lambda: np.asarray(kept[0]), lambda: 0.5 * kept[0], lambda: fit(model)]  # without `Distribute`
    for read in reads:
        with pytest.raises(easyscale.EasyScaleError, match="must be on this rank to be read. Received: `"):
            read()
    comm.barrier()


@full
def check_first_values_are_those_of_one_process():
    model, reference = deferred(tied), compiled(tied)
    for ours, theirs in zip(model.variables, reference.variables, strict=True):
        make(ours)
        np.testing.assert_array_equal(ours, theirs)


@full
def check_what_the_chief_has_is_what_all_begin_with():
    model, reference = deferred(), compiled()
    for ours, theirs in zip(model.weights, reference.weights, strict=True):
        theirs.assign(theirs + 0.1)
        if comm.is_chief:
            ours.assign(theirs)
    fit(model, stages=pipeline())
    fit(reference)
    assert distance(model, reference) <= 1e-5


@full
def check_a_second_fit_may_be_cut_elsewhere():
    model, reference = deferred(), compiled()
    names = ["dense_2", "tanh_0"][: STAGES - 1]
    for stages in (pipeline(), pipeline(stages=None, cut=names), pipeline()):
        fit(model, stages=stages, epochs=1)
        fit(reference, epochs=1)
    assert distance(model, reference) <= 1e-5


@full
def check_models_of_the_same_layers_that_are_cut_elsewhere_train_and_are_evaluated_in_turns():
    """Layers go to and fro between stages, and with them what is traced of them."""

    def build(scope):
        keras.utils.set_random_seed(1)
        with scope():
            inputs = keras.Input((12,))
            code = keras.layers.Dense(9)(keras.layers.Dense(11, activation="tanh")(inputs))
            again = keras.layers.Dense(12)(keras.layers.Dense(40, activation="tanh")(code))
            models = keras.Model(inputs, again), keras.Model(inputs, keras.layers.Dense(10)(code))
        models[0].compile(adam(), "mse")
        models[1].compile(sgd(), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return models

    def losses(models, stages):
        found = []
        for number in (0, 1, 0, 1):
            fit(models[number], data=(X, (X, Y)[number]), stages=stages, epochs=1)
            callbacks = [] if stages is None else [Distribute("ring", model_parallel=stages)]
            common = {"batch_size": 24, "verbose": 0, "callbacks": callbacks}
            found += [model.evaluate(X, y, **common) for model, y in zip(models, (X, Y), strict=True)]
        return found

    # Two stages: the second layer goes to the last stage with one model, and to the first with the other.
    stages = pipeline(cut="weights")
    np.testing.assert_allclose(losses(build(stages.scope), stages), losses(build(contextlib.nullcontext), None), 1e-5)


@full
def check_a_new_optimizer_has_new_state():
    model, reference = deferred(), compiled()
    for one in (model, reference):
        fit(one, stages=pipeline() if one is model else None, epochs=1)
        one.compile("sgd", one.loss)
        fit(one, stages=pipeline() if one is model else None, epochs=1)
    assert distance(model, reference) <= 1e-5


# What does not train


@full
def check_validation_is_that_of_one_process():
    """With batches that differ between pipelines, layers' losses, and labels that only the first stage has right."""
    for build, data in ((losses_of_layers, (X, Y)), (tied, WORDS)):
        model, reference = deferred(build, optimizer=sgd), compiled(build, sgd)
        called.names.clear()
        together = Distribute("ring", model_parallel=pipeline())  # from here on `size` counts pipelines
        size, held = easyscale.size(), 50 - easyscale.size()
        held_out = keras.tree.map_structure(lambda array: array[:held], data)  # noqa: B023
        own = easyscale.shard(*held_out)
        if comm.rank % STAGES:
            own = keras.tree.map_structure(np.zeros_like, own)
        options = {"data": data, "epochs": 2}
        history = fit(model, stages=pipeline(), validation_data=own, validation_batch_size=20 // size, **options)
        expected = fit(reference, validation_data=held_out, validation_batch_size=20, **options)
        assert list(history.history) == list(expected.history)
        for name in expected.history:
            np.testing.assert_allclose(history.history[name], expected.history[name], rtol=1e-4, err_msg=name)
        evaluated = model.evaluate(*own, batch_size=20 // size, verbose=0, callbacks=[together])
        np.testing.assert_allclose(evaluated, reference.evaluate(*held_out, batch_size=20, verbose=0), rtol=1e-4)


def check_predictions_are_those_of_one_process():
    for build, inputs, data in ((dense_net, X, (X, Y)), (tied, WORDS[0], WORDS)):
        model, reference = deferred(build, optimizer=sgd), compiled(build, sgd)
        fit(model, stages=pipeline(), data=data)
        fit(reference, data=data)
        expected = reference.predict(inputs, verbose=0)
        np.testing.assert_allclose(model.predict(inputs, batch_size=20, verbose=0), expected, rtol=1e-4, atol=1e-5)
        few = keras.tree.map_structure(lambda array: array[:5], inputs)
        np.testing.assert_allclose(model(few), reference(few), rtol=1e-4, atol=1e-5)
        assert sizes(model.variables) == own_sizes(model)
        evaluated = model.evaluate(*data, return_dict=True, verbose=0)
        assert evaluated.keys() == {"loss", "accuracy"}
        expected = reference.evaluate(*data, return_dict=True, verbose=0)
        np.testing.assert_allclose(list(evaluated.values()), [expected[name] for name in evaluated], rtol=1e-4)
        on_batch = [one.test_on_batch(few, data[1][:5]) for one in (model, reference)]
        np.testing.assert_allclose(*on_batch, rtol=1e-4)


@full
def check_it_is_called_before_its_first_fit():
    """Which cuts it: the `fit()` behind goes on with the weights that were made then."""
    calls = [
        lambda model, x, y: model.predict(x, batch_size=20, verbose=0),
        lambda model, x, y: model.evaluate(x, y, batch_size=20, verbose=0),
        lambda model, x, y: np.asarray(model(keras.tree.map_structure(lambda array: array[:5], x))),
        lambda model, x, y: model.test_on_batch(x, y),
        lambda model, x, y: model.predict_on_batch(x),
    ]
    for number, call in enumerate(calls):
        build, data = ((dense_net, (X, Y)), (tied, WORDS))[number % 2]
        model, reference = deferred(build, optimizer=sgd), compiled(build, sgd)
        np.testing.assert_allclose(call(model, *data), call(reference, *data), rtol=1e-4, atol=1e-5)
        if build is dense_net:
            assert sizes(model.variables) == own_sizes(model)
            fit(model, stages=pipeline(), data=data)
            fit(reference, data=data)
            delta = distance(model, reference)
            assert delta <= 1e-5, delta


@full
def check_a_compiled_model_inside_of_another_is_called_as_a_layer():
    def build():
        inside = keras.Sequential([keras.Input((32,)), keras.layers.Dense(24, name="inside")], name="part")
        inside.compile("sgd", "mse")
        first, last = keras.layers.Dense(32, name="first"), keras.layers.Dense(10, name="last")
        return keras.Sequential([keras.Input((12,)), first, inside, last])

    model, reference = deferred(build, optimizer=sgd), compiled(build, sgd)
    for options in ({}, {"run_eagerly": True}):
        for one in (model, reference):
            one.compile(one.optimizer, one.loss, **options)
        np.testing.assert_allclose(model(X), reference(X), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(model.predict(X, verbose=0), reference.predict(X, verbose=0), rtol=1e-4, atol=1e-5)


@full
def check_calls_are_not_compiled_by_xla():
    """Before the first `fit()`, and compiled anew."""
    model, reference = deferred(jit_compile=True), compiled()
    for call in ("predict_on_batch", "predict"):
        told = pytest.warns(easyscale.EasyScaleWarning, match="`jit_compile` is turned off for this model")
        with told if comm.is_chief else contextlib.nullcontext():
            found = getattr(model, call)(X[:24])
        np.testing.assert_allclose(found, reference.predict_on_batch(X[:24]), rtol=1e-4, atol=1e-5)
        model.compile(model.optimizer, model.loss, jit_compile=True)


def check_what_was_loaded_is_what_is_evaluated_before_its_first_fit():
    """By all ranks, where they know, cut by time, and by pipelines whose losses are put together."""
    stages = pipeline(cut="time")
    called.names.clear()
    together = Distribute("ring", model_parallel=stages)
    model, reference = compiled(scope=stages.scope), compiled()
    if comm.is_chief:
        for ours, theirs in zip(model.weights, reference.weights, strict=True):
            ours.assign(theirs + 0.1)
    for theirs in reference.weights:
        theirs.assign(theirs + 0.1)
    own, size = easyscale.shard(X, Y), easyscale.size()
    evaluated = model.evaluate(*own, batch_size=24 // size, verbose=0, callbacks=[together])
    np.testing.assert_allclose(evaluated, reference.evaluate(X, Y, batch_size=24, verbose=0), rtol=1e-4)
    held = sizes(model.variables)
    assert sum(held) < sum(int(np.prod(one.shape)) for one in model.variables)
    fit(model, stages=stages)
    fit(reference)
    assert sizes(model.variables) == held
    assert distance(model, reference) <= 1e-5


@full
def check_what_was_loaded_since_is_what_is_evaluated():
    model, reference = deferred(), compiled()
    fit(model, stages=pipeline())
    if comm.is_chief:
        for ours, theirs in zip(model.weights, reference.weights, strict=True):
            ours.assign(theirs)
    np.testing.assert_allclose(model.predict(X, verbose=0), reference.predict(X, verbose=0), rtol=1e-4, atol=1e-5)
    assert sizes(model.variables) == own_sizes(model)


@full
def check_the_best_weights_are_put_back():
    """Each rank keeps those of its stage. Labels of others make the last epochs worse."""

    def stopping():
        return keras.callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True)

    rate = lambda: keras.optimizers.SGD(1.5)
    model, reference = deferred(optimizer=rate), compiled(optimizer=rate)
    held = X[:24], Y[24:48]
    options = {"epochs": 6, "validation_data": held}
    history = fit(model, stopping(), stages=pipeline(), **options)
    expected = fit(reference, stopping(), **options)
    assert len(history.history["loss"]) == len(expected.history["loss"])
    losses = expected.history["val_loss"]
    assert losses[-1] > min(losses), losses
    np.testing.assert_allclose(reference.evaluate(*held, verbose=0)[0], min(losses), rtol=1e-5)
    assert sizes(model.variables) == own_sizes(model)
    assert distance(model, reference) <= 1e-4


@full
def check_callbacks_call_the_model_while_the_chief_writes():
    class Predicts(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append(self.model.predict(X, verbose=0))

    with tempfile.TemporaryDirectory() as folder:
        model, reference, seen = deferred(), compiled(), []
        written = keras.callbacks.ModelCheckpoint(Path(folder, "{epoch}.weights.h5"), save_weights_only=True)
        fit(model, written, Predicts(), stages=pipeline())
        fit(reference)
        np.testing.assert_allclose(seen[-1], reference.predict(X, verbose=0), rtol=1e-4, atol=1e-5)
        assert len(seen) == 2
        assert len(list(Path(folder).iterdir())) == 2 * comm.is_chief


def check_a_call_that_only_some_stages_make_is_told():
    """The first one's is heard of where others answer it, and others' where they wait for it."""
    model = deferred()
    fit(model, stages=pipeline(), epochs=1)
    files, stages = model._easyscale_pipeline._files.staged, model._easyscale_pipeline.stages
    if comm.rank == 0:
        for stage in range(1, STAGES):
            stages.send(np.array([CALL - 5]), stage)
    elif comm.rank < STAGES:
        with pytest.raises(easyscale.DesyncError, match="Received: a call of the first stage only, of 5 samples"):
            files.answer_hooks()
    if comm.rank == 0:
        files.answer_hooks()
    elif comm.rank < STAGES:
        with pytest.raises(easyscale.DesyncError, match="Received: a call on stage . that the first one has left out"):
            model(X)
    comm.barrier()


# Files in a fit()


@full
def check_callbacks_write_files():
    class OfEachStep(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if easyscale.is_chief():
                self.model.save_weights(Path(folder, "step.weights.h5"))

        def on_epoch_end(self, epoch, logs=None):
            self.model.save(Path(folder, "all.keras"))

    with tempfile.TemporaryDirectory() as folder:
        model, reference = deferred(), compiled()
        names = [Path(folder, "{epoch}.keras"), Path(folder, "all.keras"), Path(folder, "step.weights.h5")]
        fit(model, keras.callbacks.ModelCheckpoint(names[0]), OfEachStep(), stages=pipeline())
        fit(reference)
        for name in [str(names[0]).format(epoch=2), names[1]] if comm.is_chief else []:
            whole = keras.models.load_model(name)
            for ours, theirs in zip(values_of(whole), values_of(reference), strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)
        if comm.is_chief:
            reference.load_weights(names[2])
    comm.barrier()


@full
def check_a_file_that_is_loaded_in_the_scope_goes_on_with_its_optimizer():
    """Of stages, and of one process, on all ranks or on the chief; what is of other stages is let go of."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(comm.all_gather_object(folder)[0], "model.keras")
        for make in (adam, lambda: keras.optimizers.SGD(0.05, momentum=0.9, use_ema=True, ema_momentum=0.5), muon):
            for of_stages in (True, False):
                model, reference = deferred(optimizer=make), compiled(optimizer=make)
                fit(reference)
                if of_stages:
                    fit(model, stages=pipeline())
                    model.save(path)
                elif comm.is_chief:
                    reference.save(path)
                comm.barrier()
                with pipeline().scope():
                    loaded = keras.models.load_model(path)
                assert loaded.optimizer.iterations == reference.optimizer.iterations
                fit(loaded, stages=pipeline())
                fit(reference)
                assert sizes(loaded.variables) == own_sizes(loaded)
                own = sum(sizes(loaded.optimizer.variables))
                assert own < sum(int(np.prod(one.shape)) for one in reference.optimizer.variables)
                delta = distance(loaded, reference)
                assert delta <= 1e-5, (of_stages, delta)
                comm.barrier()


@full
def check_a_file_is_whole_also_if_a_callback_fails_on_all_ranks_meanwhile():
    class Fails(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            raise RuntimeError("on purpose")

    model, reference = deferred(), compiled()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "all.keras")
        with pytest.raises(RuntimeError, match="on purpose"):
            fit(model, keras.callbacks.ModelCheckpoint(path), Fails(), stages=pipeline())
        assert len(comm.all_gather_object(comm.rank)) == comm.size, "all are behind their fit()"
        fit(reference, epochs=1)
        if comm.is_chief:
            pairs = zip(values_of(keras.models.load_model(path)), values_of(reference), strict=True)
            assert max(float(np.abs(ours - theirs).max()) for ours, theirs in pairs) <= 1e-5


# What is refused


def check_what_needs_all_weights_is_refused():
    def refused(message, *callbacks, **options):
        with pytest.raises(ValueError, match=message) as raised:
            fit(deferred(), *callbacks, stages=pipeline(), **options)
        assert "\n" not in str(raised.value)
        comm.barrier()

    class DrawsHistograms(keras.callbacks.Callback):  # on all ranks, where stock ones are on the chief
        histogram_freq = 1

    refused("a histogram needs all weights", DrawsHistograms())
    model = deferred()
    fit(model, stages=pipeline(), epochs=1)
    with pytest.raises(ValueError, match="`export` needs all weights"):
        model.export("nowhere")
