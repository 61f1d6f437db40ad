"""A `fit()` with split layers beside its weights: who has what, what is sent, callbacks, files, what is refused."""

import tempfile
from pathlib import Path

import keras
import numpy as np
import pytest
from counts import Counts
from covering import full
from split_on_ranks import adam, classes, classifier, largest_difference, sgd

import easyscale
from easyscale import EasyScaleWarning
from easyscale.callbacks import Distribute
from easyscale.parallel import Split
from easyscale.parallel.split.split_layer import SplitLayer
from easyscale.parallel.split.trip import Columns, Rows

comm = easyscale.communicator.get()
LAYERS = {"fc1": "columns", "fc2": "rows"}


def build(make):
    keras.utils.set_random_seed(1)
    return make()


def fit(model, *callbacks, data=None, layers=LAYERS, group=None, **options):
    """Train with layers that are split, within groups of so many ranks, or, if there are none, as one process."""
    data = classes() if data is None else data
    options = {"epochs": 2, "batch_size": 24, "shuffle": False, "verbose": 0, **options}
    if layers:
        # Before data are divided: groups are workers.
        callbacks = [Distribute("ring", model_parallel=Split(layers, group=group)), *callbacks]
        data = easyscale.shard(*data)
        options["batch_size"] = easyscale.local_batch(options["batch_size"])
        if "validation_data" in options:
            options["validation_data"] = easyscale.shard(*options["validation_data"])
    return model.fit(*data, callbacks=list(callbacks), **options)


# Who has what


class Looks(keras.callbacks.Callback):
    """Notes behind each step what shapes the weights have, and how many numbers the optimizer's state."""

    def __init__(self):
        super().__init__()
        self.shapes, self.state = [], []

    def on_train_batch_end(self, batch, logs=None):
        self.shapes.append([tuple(one.shape) for one in self.model.weights])
        self.state.append(sum(int(np.prod(one.shape)) for one in self.model.optimizer.updates.now.variables))


@full
def check_a_worker_has_its_slices_and_their_state_only():
    model, looks = build(classifier(adam)), Looks()
    whole = [tuple(one.shape) for one in model.weights]
    fit(model, looks)

    def own(length):
        return length * (comm.rank + 1) // comm.size - length * comm.rank // comm.size

    expected = [(12, 17), (17,), (17, own(22)), (own(22),), (own(22), 13), (13,), (13, 10), (10,)]
    assert all(shapes == expected for shapes in looks.shapes)
    assert [tuple(one.shape) for one in model.weights] == whole
    slices = 18 * own(22) + 13 * own(22)
    reduced = 13 * 17 + 13 + 14 * 10  # in vectors of which each rank owns its part, and some padding
    assert all(2 * slices < state <= 2 * (slices + reduced // comm.size + 64) + 2 for state in looks.state)
    assert len({float(np.sum(value)) for value in comm.all_gather_object(_sums(model))}) == 1


def _sums(model):
    return float(sum(np.sum(value, dtype="float64") for value in model.get_weights()))


@full
def check_what_is_sent_in_a_step_is_what_the_docstrings_say():
    """16 rows of 24, 48 and 12 numbers on each worker. All weights are slices, and data have no gradient."""

    def net():
        layers = [keras.layers.Dense(48, name="fc1"), keras.layers.Dense(12, name="fc2", use_bias=False)]
        return keras.Sequential([keras.Input((24,)), *layers])

    model, counts, size = build(classifier(sgd, net, metrics=[])), Counts(), comm.size
    generator = np.random.default_rng(0)
    data = generator.normal(size=(64 * size, 24)).astype("float32"), generator.integers(0, 12, 64 * size)
    fit(model, counts, data=data, batch_size=16 * size, epochs=1)
    a, b, c = (4 * 16 * width for width in (24, 48, 12))
    expected = Columns.cost(a, b, size, has_gradient=False) + Rows.cost(b, c, size)
    assert counts.in_steps == [expected] * 2  # the weights are compared behind the first


# Callbacks and files


def saves_epochs(group=None):
    """ModelCheckpoint writes epochs of one process, which load with their optimizer."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "epoch-{epoch}.keras"))
        model = build(classifier(adam))
        fit(model, keras.callbacks.ModelCheckpoint(path), validation_data=classes(50), group=group)
        assert bool(list(Path(folder).iterdir())) == comm.is_chief
        comm.barrier()
        if comm.is_chief:
            for epoch in (1, 2):
                loaded = keras.models.load_model(path.format(epoch=epoch))
                assert type(loaded.optimizer) is keras.optimizers.Adam
                reference = build(classifier(adam))
                fit(reference, layers=None, epochs=epoch)
                assert largest_difference(loaded, reference) <= 1e-5
                for ours, theirs in zip(loaded.optimizer.variables, reference.optimizer.variables, strict=True):
                    np.testing.assert_allclose(np.array(ours), np.array(theirs), rtol=1e-3, atol=1e-5)
        comm.barrier()


@full
def check_a_saved_epoch_is_that_of_one_process_and_loads_with_its_optimizer():
    saves_epochs()


class Predicts(keras.callbacks.Callback):
    """Predicts and evaluates with the weights of an epoch, on the chief alone or on all."""

    def __init__(self, on_all):
        super().__init__()
        self.on_all, self.outputs = on_all, []

    def on_epoch_end(self, epoch, logs=None):
        if self.on_all or comm.is_chief:
            x, y = classes(10)
            loss, _ = self.model.evaluate(x, y, verbose=0)
            self.outputs.append([float(loss), float(np.sum(self.model.predict(x, verbose=0), dtype="float64"))])


def predicts_in_callbacks(group=None):
    """A callback that predicts alone has whole layers."""
    for on_all in (False, True):
        model, reference = build(classifier(sgd)), build(classifier(sgd))
        ours, theirs = Predicts(on_all), Predicts(True)
        fit(model, ours, validation_data=classes(50), group=group)
        fit(reference, theirs, layers=None)
        if on_all or comm.is_chief:
            np.testing.assert_allclose(ours.outputs, theirs.outputs, rtol=1e-4)
        assert largest_difference(model, reference) <= 1e-5


@full
def check_a_callback_that_predicts_alone_has_whole_layers():
    predicts_in_callbacks()


def decides_in_callbacks(group=None):
    """Callbacks that decide decide the same as in one process."""

    def callbacks():
        return [
            keras.callbacks.EarlyStopping("val_loss", patience=1, restore_best_weights=True),
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * (0.9 if epoch % 2 else 1.0)),
        ]

    x, y = classes(50)
    options = {"epochs": 12, "validation_data": (x[:30], (y[:30] + 1) % 10)}
    model, reference = build(classifier(sgd)), build(classifier(sgd))
    history = fit(model, *callbacks(), **options, group=group)
    expected = fit(reference, *callbacks(), layers=None, **options)
    assert history.epoch == expected.epoch and len(expected.epoch) < 12
    assert largest_difference(model, reference) <= 1e-5


@full
def check_callbacks_that_decide_decide_the_same_as_in_one_process():
    decides_in_callbacks()


@full
def check_fits_with_and_without_split_layers_go_on_with_the_optimizers_state():
    model, reference = build(classifier(adam)), build(classifier(adam))
    x, y = easyscale.shard(*classes())
    fit(model)
    fit(model, layers={"fc2": "columns"})
    model.fit(x, y, batch_size=easyscale.local_batch(24), shuffle=False, verbose=0, callbacks=[Distribute("ring")])
    fit(model)
    fit(reference, layers=None, epochs=7)
    assert largest_difference(model, reference) <= 1e-5
    loss, accuracy = model.evaluate(*classes(), verbose=0)
    assert [loss, accuracy] == pytest.approx(reference.evaluate(*classes(), verbose=0), rel=1e-4)


@full
def check_a_second_fit_traces_nothing_anew():
    model, traced, call = build(classifier(sgd)), [], SplitLayer._call
    SplitLayer._call = lambda *args, **options: traced.append(1) or call(*args, **options)
    try:
        fit(model, data=classes(48))
        assert traced
        traced.clear()
        fit(model, data=classes(48))
        assert not traced
        fit(model, data=classes(48), layers={"fc1": "rows"})
        assert traced
    finally:
        SplitLayer._call = call


class Fails(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if batch == 1:
            raise RuntimeError("a callback that fails")


@full
def check_an_interrupted_fit_says_which_weights_are_lost():
    model = build(classifier(sgd))
    first = [weight.copy() for weight in model.get_weights()]
    with (
        pytest.warns(EasyScaleWarning, match="are NaN where other workers had them"),
        pytest.raises(RuntimeError, match="a callback that fails"),
    ):
        fit(model, Fails())
    known = [float(np.mean(np.isfinite(weight))) for weight in model.get_weights()]
    assert [part < 1 for part in known] == [False, False, True, True, True, False, False, False]
    comm.barrier()
    model.set_weights(first)
    model.compile(sgd(), model.loss, metrics=["accuracy"])
    reference = build(classifier(sgd))
    fit(model)
    fit(reference, layers=None)
    assert largest_difference(model, reference) <= 1e-5


# What is refused


def _refused(message, model=None, layers=LAYERS, exchange="ring", **options):
    with pytest.raises(ValueError, match=message) as raised:
        distribute = Distribute(exchange, model_parallel=Split(layers), **options)
        model = build(classifier(sgd)) if model is None else model
        model.fit(*easyscale.shard(*classes()), verbose=0, callbacks=[distribute])
    assert "\n" not in str(raised.value)
    weights = [] if model is None else model.get_weights()
    assert all(np.isfinite(weight).all() for weight in weights), "none is lost"
    comm.barrier()


@full
def check_wrong_patterns_are_one_line():
    names = "'first', 'fc1', 'fc2', 'last'"
    _refused(
        rf"must match the name of a layer .* Received: 'conv\.\*', where the model has {names}",
        None,
        {"conv.*": "rows"},
    )
    _refused(r"Received: Dense 'fc1' of 22 columns, \d ranks", None, {"fc1": "columns"}) if comm.size > 22 else None


@full
def check_layers_that_cannot_be_split_are_one_line():
    def net(**options):
        layers = [keras.layers.Dense(8, name="fc", **options), keras.layers.LayerNormalization(name="norm")]
        return keras.Sequential([keras.Input((12,)), *layers, keras.layers.Dense(10)])

    def make(**options):
        return build(classifier(sgd, lambda: net(**options)))

    _refused(r"Received: LayerNormalization 'norm'\. Leave it out", make(), {".*": "rows"})
    _refused("Received: Dense 'fc' with a regularizer of `kernel`", make(kernel_regularizer="l2"), {"fc": "rows"})
    _refused("Received: Dense 'fc' of policy 'mixed_bfloat16'", make(dtype="mixed_bfloat16"), {"fc": "rows"})
    _refused("Received: Dense 'fc' that is not trainable", make(trainable=False), {"fc": "rows"})
    positive = make(kernel_constraint=keras.constraints.NonNeg())
    _refused("Received: SGD; a weight has a constraint", positive, {"fc": "rows"})
    narrow = build(classifier(sgd, lambda: keras.Sequential([keras.Input((12,)), keras.layers.Dense(1, name="fc")])))
    _refused(rf"Received: Dense 'fc' of 1 columns, {comm.size} ranks", narrow, {"fc": "columns"})


def check_what_cannot_be_together_is_one_line():
    _refused("must wait for each other. Received: exchange='parameter_server:async'", exchange="parameter_server:async")
    _refused("Received: update='replicated'. Use `update='sharded'`", update="replicated")
    _refused("split over processes. Received: replication='in_graph'", replication="in_graph")
    _refused("writes no checkpoints of its own yet. Received: `checkpoint`", checkpoint="folder")
    accumulates = build(classifier(lambda: sgd(gradient_accumulation_steps=2)))
    _refused("Received: SGD; it accumulates whole gradients on each worker", accumulates)


class Calls(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.model(np.zeros((2, 12)))


@full
def check_a_call_of_a_split_layer_beside_steps_is_one_line():
    model = build(classifier(sgd))
    with pytest.raises(ValueError, match="Received: a call of 'fc1' beside them"):
        fit(model, Calls())
    comm.barrier()


def check_a_call_of_a_split_layer_in_a_loop_is_one_line():
    class Loops(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.fc = keras.layers.Dense(12, name="fc")
            self.fc.build((None, 12))

        def call(self, x):
            return keras.ops.fori_loop(0, 2, lambda _, state: self.fc(state), x)

    looping = classifier(sgd, lambda: keras.Sequential([keras.Input((12,)), Loops(), keras.layers.Dense(10)]))
    with pytest.raises(ValueError, match="in a loop or branch of one"):
        fit(build(looping), layers={"fc": "rows"})
    comm.barrier()
