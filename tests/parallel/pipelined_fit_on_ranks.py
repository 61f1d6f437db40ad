"""A `fit()` by pipelines beside its weights: who has what, what is sent, callbacks, files, data, what is refused."""

import contextlib
import gc
import io
import itertools
import tempfile
import warnings
import weakref
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from covering import full
from graphs import dense_net, u_net

import easyscale
from easyscale import backend as backends
from easyscale import called
from easyscale.callbacks import Distribute
from easyscale.parallel import Pipeline
from easyscale.parallel.pipeline.stage import Stage
from easyscale.training.keras_fit import locals_of_fit

comm = easyscale.communicator.get()
STAGES = comm.size
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(72, 12)).astype("float32")
Y = GENERATOR.integers(0, 10, 72)


def compiled(build=dense_net, optimizer=None, **options):
    keras.utils.set_random_seed(1)
    model = build()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    options = {"loss": loss, "metrics": ["accuracy"], **options}
    model.compile(optimizer or keras.optimizers.SGD(0.05, momentum=0.9), **options)
    return model


def distribute(forgets=True, **options):
    if forgets:  # each check is a script of its own
        called.names.clear()
    options = {"stages": STAGES, "microbatches": 4, "cut": "weights", **options}
    return Distribute("ring", model_parallel=Pipeline(**options))


def fit(model, *callbacks, x=X, y=Y, **options):
    options = {"epochs": 2, "batch_size": 24, "shuffle": False, "verbose": 0, **options}
    return model.fit(x, y, callbacks=list(callbacks), **options)


def assert_same(model, other, tolerance=1e-5):
    for ours, theirs in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance)


def on_all(value):
    """Whether all ranks have the same."""
    values = comm.all_gather_object(value)
    return all(one == values[0] for one in values)


# Who has what


@full
def check_a_pipeline_is_one_worker():
    with_stages = distribute()
    assert (easyscale.size(), easyscale.rank(), easyscale.local_batch(24)) == (1, 0, 24)
    assert easyscale.is_chief() == (comm.rank == 0)
    assert easyscale.shard(X) is not None and len(easyscale.shard(X)) == len(X)
    assert len(easyscale.unshard(X)) == len(X)
    assert with_stages is not None
    Distribute("ring")
    assert (easyscale.size(), easyscale.rank()) == (comm.size, comm.rank)


@full
def check_each_rank_has_the_weights_and_the_state_of_its_stage_only():
    model, held = compiled(optimizer=keras.optimizers.Adam(0.01)), []
    first = [value.copy() for value in model.get_weights()]
    step = Stage.step

    def look(stage, *args):
        held.append([np.array(variable).size for variable in model.variables])
        assert len(model.optimizer.variables) == 2  # the steps so far, and the learning rate
        return step(stage, *args)

    Stage.step = look
    try:
        fit(model, distribute())
    finally:
        Stage.step = step
    stages = easyscale.parallel.pipeline.cut.cut_model(model, STAGES).stages
    own = {id(variable) for variable in stages[comm.rank].variables}
    assert len(held) == 6
    assert all(sizes == [np.size(one) * (id(one) in own) for one in model.variables] for sizes in held)
    assert all(np.any(value != before) for value, before in zip(model.get_weights(), first, strict=True))
    assert on_all([float(np.sum(value)) for value in [*model.get_weights(), *model.optimizer.variables]])


def check_an_interrupted_fit_leaves_no_weights_of_other_stages():
    model, step, count = compiled(), Stage.step, []

    def interrupted(stage, *args):
        count.append(1)
        if len(count) == 2:
            raise InterruptedError
        return step(stage, *args)

    Stage.step = interrupted
    try:
        with pytest.raises(InterruptedError):
            fit(model, distribute())
    finally:
        Stage.step = step
    stages = easyscale.parallel.pipeline.cut.cut_model(model, STAGES).stages
    own = {id(variable) for variable in stages[comm.rank].variables}
    assert all(np.isfinite(one).all() == (id(one) in own) for one in model.variables)
    comm.barrier()


def sent_in_steps(model, **options):
    """Train for an epoch; return for each step its samples, and the bytes that the stage has sent in it."""
    sent, step = [], Stage.step

    def counted(stage, batch, scale):
        before = comm.sent.bytes
        result = step(stage, batch, scale)
        sent.append((batch.samples, comm.sent.bytes - before))
        return result

    Stage.step = counted
    try:
        fit(model, distribute(), epochs=1, **options)
    finally:
        Stage.step = step
    return sent


@full
def check_a_step_sends_what_crosses_and_no_more():
    model = compiled(u_net, loss="mse", metrics=[])
    images = GENERATOR.normal(size=(20, 8, 8, 1)).astype("float32")
    sent = sent_in_steps(model, x=images, y=images, batch_size=16)
    stages = easyscale.parallel.pipeline.cut.cut_model(model, STAGES).stages
    own = stages[comm.rank]
    forward = sum(one.nbytes for one in own.sends)
    backward = sum(one.nbytes for one in own.receives if one.has_gradient)
    labels = 8 * 8 * 4 if comm.rank == 0 else 0
    assert sent == [(samples, samples * (forward + backward + labels)) for samples in (16, 4)]


def check_a_layer_that_adds_to_the_loss_costs_a_number_for_each_micro_batch():
    with_losses = compiled(lambda: dense_net(kernel_regularizer="l2"))
    stock, more = (sent_in_steps(model) for model in (compiled(), with_losses))
    numbers = 0 if comm.rank == STAGES - 1 else 4 * 4  # 4 micro-batches, 4 bytes
    assert more == [(samples, nbytes + numbers) for samples, nbytes in stock]


# Callbacks


@full
def check_a_saved_epoch_is_that_of_one_process_and_loads_with_its_optimizer():
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "epoch-{epoch}.keras"))
        model = compiled(optimizer=keras.optimizers.Adam(0.01))
        fit(model, distribute(), keras.callbacks.ModelCheckpoint(path))
        comm.barrier()
        if comm.is_chief:
            for epoch in (1, 2):
                loaded = keras.models.load_model(path.format(epoch=epoch))
                assert type(loaded.optimizer) is keras.optimizers.Adam
                reference = compiled(optimizer=keras.optimizers.Adam(0.01))
                fit(reference, epochs=epoch)
                assert_same(loaded, reference)
                for ours, theirs in zip(loaded.optimizer.variables, reference.optimizer.variables, strict=True):
                    np.testing.assert_allclose(ours, theirs, atol=1e-5)
        else:
            assert not list(Path(folder).iterdir())


def check_a_second_fit_goes_on_with_the_optimizers_state():
    model = compiled(optimizer=keras.optimizers.Adam(0.01))
    fit(model, distribute())
    fit(model, distribute(schedule="gpipe", microbatches=2))
    reference = compiled(optimizer=keras.optimizers.Adam(0.01))
    fit(reference)
    fit(reference)
    assert_same(model, reference)
    assert int(model.optimizer.iterations) == 12


@full
def check_a_second_fit_traces_nothing_anew_until_something_has_changed():
    made, backend = [], backends.get()
    stage_passes = type(backend).stage_passes
    type(backend).stage_passes = lambda *args: made.append(1) or stage_passes(*args)
    try:
        model, reference = (compiled(optimizer=keras.optimizers.Adam(0.01)) for _ in range(2))
        fit(model, distribute())
        model.optimizer.learning_rate = 0.003
        fit(model, distribute())
        assert len(made) == 1
        fit(model, distribute(), sample_weight=np.linspace(0, 2, len(X)))
        assert len(made) == 2
        model.compile("sgd", model.loss)
        fit(model, distribute(), epochs=1)
        assert len(made) == 3
    finally:
        type(backend).stage_passes = stage_passes
    fit(reference)
    reference.optimizer.learning_rate = 0.003
    fit(reference)
    fit(reference, sample_weight=np.linspace(0, 2, len(X)))
    reference.compile("sgd", reference.loss)
    fit(reference, epochs=1)
    assert_same(model, reference)


@full
def check_fit_without_pipeline_goes_on_where_the_pipeline_has_ended():
    model = compiled(optimizer=keras.optimizers.Adam(0.01))
    fit(model, distribute())
    fit(model)
    reference = compiled(optimizer=keras.optimizers.Adam(0.01))
    fit(reference, epochs=4)
    assert_same(model, reference)


@full
def check_callbacks_that_decide_decide_the_same_as_in_one_process():
    def callbacks():
        return [
            keras.callbacks.EarlyStopping("val_loss", patience=1, restore_best_weights=True),
            keras.callbacks.ReduceLROnPlateau("val_loss", patience=1, factor=0.3, min_delta=0.05),
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * (0.9 if epoch % 2 else 1.0)),
        ]

    options = {"epochs": 12, "validation_data": (X[:30], (Y[:30] + 1) % 10)}
    model, reference = compiled(), compiled()
    history = fit(model, distribute(), *callbacks(), **options)
    expected = fit(reference, *callbacks(), **options)
    assert len(expected.epoch) < 12
    assert history.epoch == expected.epoch
    for name, values in expected.history.items():
        np.testing.assert_allclose(history.history[name], values, rtol=1e-4, err_msg=name)
    assert_same(model, reference)


class Looks(keras.callbacks.Callback):
    """Notes the sum of all weights after each step, and stops on one rank."""

    def __init__(self, last=None):
        super().__init__()
        self.sums, self.logs, self.last = [], [], last

    def on_train_batch_end(self, batch, logs=None):
        self.sums.append([float(np.sum(value, dtype="float64")) for value in self.model.get_weights()])
        self.logs.append(logs["loss"])
        if self.last is not None and batch == self.last:
            self.model.stop_training = True


@full
def check_a_callback_of_a_step_sees_all_weights_and_the_logs_on_each_rank():
    ours, theirs = Looks(), Looks()
    fit(compiled(), distribute(), ours)
    fit(compiled(), theirs)
    np.testing.assert_allclose(ours.sums, theirs.sums, atol=1e-4)
    np.testing.assert_allclose(ours.logs, theirs.logs, rtol=1e-5)


@full
def check_what_one_rank_decides_holds_on_all():
    looks = Looks(last=1 if comm.rank == comm.size - 1 else None)
    history = fit(compiled(), distribute(), looks)
    assert len(looks.sums) == 2
    assert history.epoch == [0]


@full
def check_the_chief_says_how_the_model_is_cut():
    with contextlib.redirect_stdout(io.StringIO()) as out:
        fit(compiled(), distribute(), verbose=2, epochs=1)
    said = out.getvalue()
    assert ("EasyScale: stage  layers" in said) == comm.is_chief
    assert ("accuracy" in said) == comm.is_chief


# Afterwards


@full
def check_predictions_and_files_are_those_of_a_stock_model():
    model, reference = compiled(), compiled()
    fit(model, distribute())
    fit(reference)
    np.testing.assert_allclose(model.predict(X, verbose=0), reference.predict(X, verbose=0), atol=1e-5)
    np.testing.assert_allclose(model.evaluate(X, Y, verbose=0), reference.evaluate(X, Y, verbose=0), rtol=1e-4)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.keras")
        model.save(path)
        loaded = keras.models.load_model(path)
        np.testing.assert_array_equal(loaded.predict(X, verbose=0), model.predict(X, verbose=0))
        fit(loaded, distribute(microbatches=2))  # a file of a pipeline, or of one process, goes on in a pipeline
        fit(reference)
        assert_same(loaded, reference)


@full
def check_evaluate_with_the_callback_is_that_of_all_data():
    model = compiled()
    callback = distribute()
    results = model.evaluate(X, Y, verbose=0, callbacks=[callback])
    np.testing.assert_allclose(results, compiled().evaluate(X, Y, verbose=0), rtol=1e-5)


# Data


@full
def check_only_the_first_stage_reads_data():
    model, reference = compiled(), compiled()
    nothing = comm.rank > 0
    fit(model, distribute(), x=X * 0 if nothing else X, y=Y * 0 if nothing else Y)
    fit(reference)
    assert_same(model, reference)


@full
def check_shuffled_data_stay_with_their_labels():
    """A linear rule that is learnt to a loss that mixed-up labels would never reach."""
    keras.utils.set_random_seed(comm.rank)
    rule = np.random.default_rng(5).normal(size=(12, 10)).astype("float32")
    model = compiled(loss="mse", metrics=[], optimizer=keras.optimizers.Adam(0.05))
    history = fit(model, distribute(), y=0.1 * X @ rule, shuffle=True, epochs=20)
    assert history.history["loss"][-1] < 0.2 * history.history["loss"][0]
    assert on_all(history.history["loss"])


@full
def check_a_dataset_of_unknown_length():
    def batches():
        for start in range(0, 72, 24):
            yield X[start : start + 24], Y[start : start + 24]

    signature = tf.TensorSpec((None, 12), tf.float32), tf.TensorSpec((None,), tf.int64)
    dataset = tf.data.Dataset.from_generator(batches, output_signature=signature)
    model, reference = compiled(), compiled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        history = model.fit(dataset, epochs=2, verbose=0, callbacks=[distribute()])
    expected = fit(reference)
    assert_same(model, reference)
    np.testing.assert_allclose(history.history["loss"], expected.history["loss"], rtol=1e-5)


# What is refused, on all ranks alike and before the first step


def refused(message, model=None, callback=None, **options):
    model = model or compiled()
    before = [value.copy() for value in model.get_weights()]
    with pytest.raises((ValueError, easyscale.DesyncError), match=message) as raised:
        fit(model, callback or distribute(), **options)
    assert "\n" not in str(raised.value)
    for value, old in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(value, old)
    comm.barrier()


def with_layer(layer):
    kept = dense_net().layers
    return compiled(lambda: keras.Sequential([keras.Input((12,)), kept[0], layer, *kept[1:]]))


def check_data_are_let_go_of_when_fit_has_ended():
    model, data, known = compiled(), ((X[:8], Y[:8]) for _ in itertools.count()), []
    looks = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: known.append(weakref.ref(locals_of_fit(model)["epoch_iterator"]))
    )
    model.fit(data, epochs=2, steps_per_epoch=2, verbose=0, callbacks=[distribute(), looks])
    gc.collect()
    assert [one() for one in known] == [None] * 4


@full
def check_optimizers_that_do_more_than_a_step_are_refused():
    summed_up = "does not clip by a global norm, or scale, .*Received: a SGD with gradient_accumulation_steps=2"
    for options, message in (({"gradient_accumulation_steps": 2, "global_clipnorm": 1.0}, summed_up),):
        refused(message, compiled(optimizer=keras.optimizers.SGD(0.1, **options)))
    refused("an optimizer for each stage", compiled(optimizer=easyscale.DistributedOptimizer("sgd")))


def check_layers_that_see_more_than_a_micro_batch_are_refused():
    normal = keras.layers.BatchNormalization(synchronized=True, name="normal")
    refused("that of each micro-batch by itself.*'normal' with synchronized=True", with_layer(normal))
    spectral = keras.layers.SpectralNormalization(keras.layers.Dense(32), name="spectral")
    refused("same weights for all micro-batches.*'spectral', which divides.*microbatches=", with_layer(spectral))


@full
def check_a_tensor_of_another_type_than_its_layer_says_does_not_cross():
    def build():
        inputs = keras.Input((12,))
        signs = keras.layers.Lambda(lambda x: x > 0, name="signs")(inputs)  # Keras takes it for float32
        x = keras.layers.Dense(12)(keras.layers.Dense(12, name="first")(inputs))
        return keras.Model(inputs, keras.layers.Dense(10)(x * keras.ops.cast(signs, "float32")))

    names = ["first"] if comm.size == 2 else None
    if names is not None:
        refused(
            "Received: bool of layer 'signs', which was to be float32", compiled(build), distribute(cut=names, stages=2)
        )


def check_inputs_of_another_shape_are_refused():
    model = compiled()
    message = r"inputs must have the shape that the model says. Received: \(.*, 11\), which is to be \(None, 12\)"
    with pytest.raises(ValueError, match=message) as raised:
        fit(model, distribute(), x=X[:, :11])
    assert "\n" not in str(raised.value)


@full
def check_a_mask_that_follows_from_weights_is_refused():
    layers = [keras.layers.Dense(4, name="early"), keras.layers.Masking(), keras.layers.Dense(10)]
    model = compiled(lambda: keras.Sequential([keras.Input((3, 4)), *layers]), metrics=[])
    refused("must follow from its inputs alone in a pipeline. Received: one behind layer 'early'", model)


def check_models_and_steps_that_are_not_keras_own_are_refused():
    class Own(keras.Model):
        def train_step(self, data):
            return {}

    def own():
        inputs = keras.Input((12,))
        return Own(inputs, keras.layers.Dense(10)(keras.layers.Dense(8)(inputs)))

    refused("must have Keras's `train_step`.*Received: Own", compiled(own))
    refused("one step at a time", compiled(steps_per_execution=2))


@full
def check_bad_pipelines_are_refused():
    names = ["dense_9", "dense_1"][: STAGES - 1]
    refused("no layer 'dense_9'. Did you mean 'dense_", callback=distribute(stages=None, cut=names))
    refused("for each micro-batch. Received: 24 samples, microbatches=25", callback=distribute(microbatches=25))
    with pytest.raises(ValueError, match=f"multiple of the stages.*Received: {comm.size} ranks, stages=7. Start 7"):
        distribute(stages=7)
    rule = "must be an `easyscale.parallel.Pipeline`, or `Split`. Received: model_parallel=2"
    with pytest.raises(ValueError, match=rule):
        Distribute("ring", model_parallel=2)
    with pytest.raises(ValueError, match="a process for each stage. Received: replication='in_graph'"):
        Distribute("ring", replication="in_graph", model_parallel=Pipeline(2))


def check_data_that_were_divided_before_are_refused():
    Distribute("ring")
    easyscale.shard(X)
    late = distribute(forgets=False)
    refused("must be made before data are divided.*Received: shard called before", callback=late)
    Distribute("ring")
    easyscale.local_batch(24)
    early = distribute(forgets=False)
    x, y = easyscale.shard(X, Y)
    fit(compiled(), early, x=x, y=y, batch_size=easyscale.local_batch(24), epochs=1)
    message = (
        "behind one with `model_parallel` must be made before data are divided anew.*Received: local_batch and shard"
    )
    with pytest.raises(ValueError, match=message):  # each rank would train on the data of a pipeline
        compiled().fit(x, y, batch_size=8, verbose=0, callbacks=[Distribute("ring")])
    comm.barrier()
    history = compiled().fit(*easyscale.shard(X, Y), batch_size=8, verbose=0, callbacks=[Distribute("ring")])
    assert len(history.epoch) == 1


@full
def check_ranks_that_differ_are_told_so():
    refused("same epochs, by the same pipeline", callback=distribute(microbatches=2 + comm.rank))
    refused("must go through the same batches", batch_size=24 if comm.rank else 36)
