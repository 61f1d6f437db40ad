"""Stages whose layers a group of ranks divides take the steps of one process: 2 stages of 2 ranks each.

Checks of equality return the largest difference of a weight.
"""

import keras
import numpy as np
import pytest
from covering import full
from folders import done_with, new_folder
from pipeline_on_ranks import classes, compare, equal, largest_difference
from split_on_ranks import adam, classifier, looked_up, sgd

import easyscale
from easyscale import called
from easyscale.callbacks import Distribute
from easyscale.mesh import ranks_of_worker
from easyscale.parallel import Pipeline, Split
from easyscale.parallel.pipeline.stage import Stage
from easyscale.parallel.split.trip.within import ColumnsWithin, RowsWithin, SummandsWithin

comm = easyscale.communicator.get()
WAYS = {"fc1": "columns", "fc2": "rows", "fc3": "columns", "last": "rows"}
PIPELINES = comm.size // 4


def net():
    """The first stage has columns followed by rows, which keep what is between; 22 and 13 are no multiples of 2."""
    layers = [
        keras.layers.Dense(17, activation="tanh", name="first"),
        keras.layers.Dense(22, activation="gelu", name="fc1"),
        keras.layers.Dense(13, activation="tanh", name="fc2"),
        keras.layers.Dense(9, activation="tanh", name="fc3"),
        keras.layers.LayerNormalization(),
        keras.layers.Dense(10, name="last"),
    ]
    return keras.Sequential([keras.Input((12,)), *layers])


def staged(layers=None, **options):
    """Return the arguments of a `Pipeline`."""
    split = Split(layers or WAYS, options.pop("group", 2))
    return {"stages": 2, "microbatches": 4, "cut": ["fc2"], "split": split, **options}


def fit(model, *callbacks, data=None, batch=24, **options):
    """Train a model by stages that are split."""
    called.names.clear()
    given = {name: options.pop(name) for name in ("layers", "group", "microbatches") if name in options}
    distribute = Distribute("ring", model_parallel=Pipeline(**staged(**given)), **options.pop("distribute", {}))
    data, local = easyscale.shard(*(data or classes(48))), easyscale.local_batch(batch)
    options = {"epochs": 2, "shuffle": False, "verbose": 0, **options}
    return model.fit(*data, batch_size=local, callbacks=[*callbacks, distribute], **options)


def words(count=49):
    generator = np.random.default_rng(3)
    return generator.integers(0, 15, (count, 6)), generator.integers(0, 10, count)


# Steps


def check_both_schedules_with_1_4_and_8_microbatches():
    """The last batch has one sample, so two pipelines have no part in it both."""
    whole = [staged(microbatches=1, group="all")] * (PIPELINES == 1)
    deltas = [equal(classifier(adam, net), classes(49), [staged(schedule="gpipe", microbatches=8), *whole])]
    return max(*deltas, equal(classifier(sgd, net), classes(49), [staged(microbatches=4)]))


@full
def check_clipping_by_norms_over_stages_and_slices():
    optimizers = (lambda: sgd(clipnorm=0.1), lambda: adam(global_clipnorm=0.2))
    return max(equal(classifier(one, net), classes(), [staged(microbatches=2)]) for one in optimizers)


@full
def check_cut_by_time_and_a_stage_without_split_layers():
    pipelines = [staged({"fc1": "rows"}, cut="time"), staged({"fc3": "columns"}, cut="weights")]
    return equal(classifier(sgd, net), classes(49), pipelines, validates=True)


@full
def check_embeddings_of_several_microbatches_that_are_alive():
    """The first stage looks the numbers of all micro-batches up before it has the gradient of the first."""
    pipelines = [
        staged({"embedding": way}, cut=["embedding"], schedule=schedule)
        for way, schedule in (("rows", "gpipe"), ("columns", "1f1b"))
    ]
    return equal(classifier(lambda: adam(clipnorm=0.05), looked_up), words(), pipelines)


@full
def check_attention_by_heads_beside_other_split_layers():
    """Layers beside each other, whose gradients no data put in order; one that is called twice, on one stage."""

    def build():
        word = keras.Input((6,), dtype="int32")
        x = keras.layers.Embedding(15, 8, mask_zero=True)(word)
        x = x + keras.layers.MultiHeadAttention(4, 3, name="attention")(x, x, use_causal_mask=True)
        parts = [keras.layers.Dense(8, name=f"part_{number}")(x) for number in range(4)]
        x = keras.layers.Add(name="cut")(parts)
        shared = keras.layers.Dense(8, name="shared")
        x = shared(keras.ops.tanh(shared(x))) + x
        return keras.Model(word, keras.layers.Dense(10, name="last")(keras.layers.Flatten()(x)))

    ways = {"attention": "heads", "part_[01]": "columns", "part_[23]": "rows", "shared": "columns"}
    return equal(classifier(adam, build), words(), [staged(ways, cut=["cut"])])


@full
def check_ranks_of_a_stage_that_shuffle_in_their_own_ways_have_the_batch_of_the_first():
    model = classifier(sgd, net)()
    keras.utils.set_random_seed(7 + comm.rank)
    fit(model, shuffle=True, distribute={"check_every": 1})
    sums = [float(np.sum(value, dtype="float64")) for value in model.get_weights()]
    assert all(other == sums for other in comm.all_gather_object(sums))


# Who has what, and what is sent


def held_in_steps(model, look, **options):
    step = Stage.step

    def looked(stage, *args):
        before = look()
        result = step(stage, *args)
        found.append((before, look()))
        return result

    found, Stage.step = [], looked
    try:
        fit(model, **options)
    finally:
        Stage.step = step
    return found


@full
def check_a_rank_has_slices_of_its_stage():
    model, shapes = classifier(adam, net)(), []

    def look():
        shapes.append([np.array(one).shape for one in model.weights])

    held_in_steps(model, look)
    (stage, own), nothing = divmod(comm.rank % 4, 2), (0,)
    of_7_8 = (13, 4 + own), (4 + own,)
    of_first = [(12, 17), (17,), (17, 11), (11,), (11, 13), (13,), *[nothing] * 6]
    of_second = [*[nothing] * 6, *of_7_8, (9,), (9,), (4 + own, 10), (10,)]
    assert all(found == (of_second if stage else of_first) for found in shapes), shapes[0]
    assert [tuple(one.shape) for one in model.weights][:4] == [(12, 17), (17,), (17, 22), (22,)]


@full
def check_a_step_sends_what_the_docstrings_say():
    """8 samples of 24, 48, 24, 12 and 12 numbers in 4 micro-batches; 12 numbers cross, and the label."""
    layers = [
        keras.layers.Dense(24, name="fc1"),
        keras.layers.Dense(48, activation="gelu", name="fc2"),
        keras.layers.Dense(12, name="cut"),
        keras.layers.Dense(10, name="last"),
    ]
    model = classifier(sgd, lambda: keras.Sequential([keras.Input((24,)), *layers]), metrics=[])()
    generator, rows = np.random.default_rng(0), 8
    count = 4 * rows * PIPELINES
    data = generator.normal(size=(count, 24)).astype("float32"), generator.integers(0, 10, count)
    ways = {"fc1": "columns", "fc2": "columns", "cut": "rows", "last": "rows"}
    called.names.clear()
    distribute = Distribute("ring", model_parallel=Pipeline(**staged(ways, cut=["cut"])))
    sent, step = [], Stage.step

    def counted(stage, *args):
        before = comm.sent.bytes
        result = step(stage, *args)
        sent.append(comm.sent.bytes - before)
        return result

    Stage.step = counted
    try:
        data = easyscale.shard(*data)
        model.fit(*data, batch_size=rows, shuffle=False, verbose=0, callbacks=[distribute])
    finally:
        Stage.step = step
    of_12, of_24, label = 4 * rows * 12, 4 * rows * 24, 8 * rows
    if comm.rank % 4 < 2:
        within = ColumnsWithin.cost(of_24, of_24, 2, has_gradient=False) + SummandsWithin.cost(of_24, of_12, 2)
        expected = within + of_12 + label
    else:
        expected = RowsWithin.cost(of_12, 4 * rows * 10, 2) + of_12
    assert sent[1:] == [expected] * 3, (sent, expected)


@full
def check_a_worker_is_all_ranks_of_a_pipeline():
    called.names.clear()
    Distribute("ring", model_parallel=Pipeline(**staged()))
    assert ranks_of_worker() == 4
    assert (easyscale.size(), easyscale.rank()) == (PIPELINES, comm.rank // 4)
    assert easyscale.local_batch(24) == 24 // PIPELINES
    assert easyscale.is_chief() == (comm.rank == 0)


# Callbacks and files


class Predicts(keras.callbacks.Callback):
    """Has the loss of the whole model behind each epoch, by a prediction of one rank alone."""

    def __init__(self):
        super().__init__()
        self.losses = []

    def on_epoch_end(self, epoch, logs=None):
        x, y = classes(48)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.losses.append(float(loss(y, self.model.predict(x, verbose=0))))


@full
def check_callbacks_and_files_have_whole_layers():
    """A file of an epoch goes on in one process; the best weights come back; a prediction has whole layers."""
    folder = new_folder()
    reference, model = classifier(adam, net)(), classifier(adam, net)()
    told = comm.all_gather_object([one.tolist() for one in reference.get_weights()])
    for one in (reference, model):
        one.set_weights(list(map(np.array, told[0])))

    def callbacks(name):
        stops = keras.callbacks.EarlyStopping("loss", patience=1, min_delta=10.0, restore_best_weights=True)
        return Predicts(), keras.callbacks.ModelCheckpoint(folder / f"{name}-{{epoch}}.keras"), stops

    expected = callbacks("one")
    if comm.is_chief:
        reference.fit(*classes(48), batch_size=24, epochs=3, shuffle=False, verbose=0, callbacks=list(expected))
    losses = comm.all_gather_object(expected[0].losses)[0]
    found = callbacks("several")
    history = fit(model, *found, epochs=3)
    np.testing.assert_allclose(found[0].losses, losses, atol=1e-5)
    assert len(history.history["loss"]) == 2
    if comm.is_chief:
        assert largest_difference(model, reference) <= 1e-5
        one, several = (keras.models.load_model(folder / f"{name}-1.keras") for name in ("one", "several"))
        compare(several, {}, one, {}, 1e-5)
        for other in (one, several):
            other.fit(*classes(48), batch_size=24, shuffle=False, verbose=0)
        assert largest_difference(one, several) <= 1e-5
    done_with(folder)


@full
def check_a_second_fit_goes_on_and_so_does_one_process():
    model, reference = classifier(adam, net)(), classifier(adam, net)()
    reference.set_weights(list(map(np.array, comm.all_gather_object([one.tolist() for one in model.get_weights()])[0])))
    for _ in range(2):
        fit(model, epochs=1)
        reference.fit(*classes(48), batch_size=24, shuffle=False, verbose=0)
    assert largest_difference(model, reference) <= 1e-5
    model.fit(*classes(48), batch_size=24, shuffle=False, verbose=0)  # whole, on each rank alone
    assert np.isfinite(model.get_weights()[2]).all()


@full
def check_an_interrupted_fit_leaves_slices_of_its_stage_only():
    model, step, count = classifier(sgd, net)(), Stage.step, []

    def interrupted(stage, *args):
        count.append(1)
        if len(count) == 2:
            raise InterruptedError
        return step(stage, *args)

    Stage.step = interrupted
    try:
        with pytest.raises(InterruptedError), pytest.warns(easyscale.EasyScaleWarning, match="are NaN on this rank"):
            fit(model)
    finally:
        Stage.step = step
    stage, own = divmod(comm.rank % 4, 2)
    known = [float(np.isfinite(value).mean()) for value in model.get_weights()]
    assert known[2] == (0.5 if stage == 0 else 0.0) and known[4] == (0.5 if stage == 0 else 0.0)
    assert known[8] == known[9] == stage and known[6] == pytest.approx(stage * (4 + own) / 9)
    comm.barrier()


# What is refused


def refused(make=None, **options):
    with pytest.raises((ValueError, TypeError)) as raised:
        fit((make or classifier(sgd, net))(), **options)
    message = str(raised.value)
    assert ". Received: " in message and "\n" not in message, message
    comm.barrier()
    return message


def check_what_cannot_be_split_is_refused_before_the_first_step():
    def shared_by_stages():
        x = inputs = keras.Input((12,))
        shared = keras.layers.Dense(12, name="fc1")
        x = keras.layers.Dense(12, name="fc2")(shared(x))
        return keras.Model(inputs, keras.layers.Dense(10)(shared(x)))

    for make, options, rule in (
        (None, {"layers": {"fc9": "columns"}}, "a pattern must match the name of a layer that can be split"),
        (None, {"distribute": {"update": "replicated"}}, "each worker updates its slices of layers that are split"),
        (None, {"distribute": {"checkpoint": "run"}}, "writes no checkpoints of its own yet"),
        (None, {"microbatches": 32}, "the first batch of a worker must have a sample for each micro-batch"),
        (classifier(sgd, shared_by_stages), {"layers": {"fc1": "rows"}}, "must be on one stage. Received: Dense 'fc1'"),
        (classifier(lambda: keras.optimizers.Lamb(), net), {}, "layers that are split need"),
        (classifier(lambda: adam(use_ema=True), net), {}, "layers that are split need"),
        (classifier(lambda: sgd(gradient_accumulation_steps=2), net), {}, "it accumulates whole gradients"),
    ):
        assert rule in refused(make, **options), rule
    with pytest.raises(ValueError, match=r"divided from what each rank has of the whole model\. Received: `scope\(\)`"):
        Pipeline(**staged()).scope()
    with pytest.raises(ValueError, match=rf"Received: {comm.size} ranks, stages=2, of which each is on 3 ranks"):
        Distribute(model_parallel=Pipeline(**staged(group=3)))
