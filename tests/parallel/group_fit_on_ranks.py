"""A `fit()` whose layers are split within groups, beside its weights: who has what, what is sent, callbacks, files."""

import functools
import math

import keras
import numpy as np
import pytest
from counts import Counts
from covering import full
from split_fit_on_ranks import Fails, Looks, build, decides_in_callbacks, predicts_in_callbacks, saves_epochs
from split_fit_on_ranks import fit as fit_split
from split_on_ranks import BOTH, adam, classes, classifier, largest_difference, sgd

import easyscale
from easyscale import EasyScaleWarning
from easyscale.callbacks import Distribute
from easyscale.layout.bucket import Bucket
from easyscale.parallel import Split
from easyscale.parallel.split.trip.within import ColumnsWithin, RowsWithin, SummandsWithin

comm = easyscale.communicator.get()
RANKS = 2 if comm.size == 4 else comm.size  # of a group
GROUPS = comm.size // RANKS


fit = functools.partial(fit_split, group=RANKS)


# Who has what


@full
def check_groups_are_workers():
    Distribute(model_parallel=Split(BOTH, group=RANKS))
    assert (easyscale.size(), easyscale.rank()) == (GROUPS, comm.rank // RANKS)
    assert easyscale.local_batch(24) == 24 // GROUPS
    assert easyscale.shard(np.arange(12)).tolist() == list(range(comm.rank // RANKS, 12, GROUPS))
    assert easyscale.is_chief() == (comm.rank == 0)


@full
def check_a_rank_has_its_slices_and_the_state_of_its_part_of_them():
    model, looks = build(classifier(adam)), Looks()
    whole = [tuple(one.shape) for one in model.weights]
    fit(model, looks)
    rank = comm.rank % RANKS
    own = 22 * (rank + 1) // RANKS - 22 * rank // RANKS
    expected = [(12, 17), (17,), (17, own), (own,), (own, 13), (13,), (13, 10), (10,)]
    assert all(shapes == expected for shapes in looks.shapes)
    assert [tuple(one.shape) for one in model.weights] == whole
    numbers = sum(math.prod(shape) for shape in expected)
    assert all(state <= 2 * (numbers // GROUPS + 128) + 2 for state in looks.state)
    sums = [float(sum(np.sum(value, dtype="float64") for value in model.get_weights()))]
    assert len({tuple(other) for other in comm.all_gather_object(sums)}) == 1


# What is sent


def _given(rows, *widths):
    """What this rank sends so that all of its group have the first one's batch, of arrays with two axes or one."""
    rank = comm.rank % RANKS
    times = math.ceil(math.log2(RANKS)) if rank == 0 else int(RANKS == 4 and rank == 2)
    return times * rows * sum(widths) + 8 * (2 + 1) * (RANKS - 1)


def _length(numbers):
    """The length of a vector of arrays, whose begins are aligned."""
    bucket = Bucket(np.dtype("float32"))
    for count in numbers:
        bucket.reserve(0, (count,))
    bucket.round_up(GROUPS)
    return bucket.length


def _exchanged(numbers):
    """What the ring between groups sends of a vector."""
    return 2 * (GROUPS - 1) / GROUPS * 4 * _length(numbers)


def _made_alike(numbers):
    """What this rank sends to the others of its group, of the sum that it owns as they do."""
    own = np.diff(np.linspace(0, _length(numbers) // GROUPS, RANKS + 1).astype(int))[comm.rank % RANKS]
    return 4 * own * (RANKS - 1)


def _sent_in_steps(layers, ways, rows=12):
    model, counts = build(classifier(sgd, lambda: keras.Sequential(layers), metrics=[])), Counts()
    generator, width = np.random.default_rng(0), model.input_shape[-1]
    data = generator.normal(size=(4 * rows * GROUPS, width)).astype("float32"), generator.integers(0, 12, 48 * GROUPS)
    fit(model, counts, data=data, layers=ways, batch_size=rows * GROUPS, epochs=1)
    return counts.in_steps  # of all but the first, behind which weights are compared


@full
def check_what_is_sent_in_a_step_is_what_the_docstrings_say():
    """12 rows of 24, 48 and 12 numbers in each group. Data have no gradient, and all weights are slices."""
    layers = [keras.layers.Dense(48, name="fc1"), keras.layers.Dense(12, name="fc2", use_bias=False)]
    between = keras.layers.Activation(keras.ops.softmax)  # needs all columns
    sent = _sent_in_steps([keras.Input((24,)), layers[0], between, layers[1]], {"fc1": "columns", "fc2": "rows"})
    a, b, c = (4 * 12 * width for width in (24, 48, 12))
    expected = ColumnsWithin.cost(a, b, RANKS, has_gradient=False) + RowsWithin.cost(b, c, RANKS)
    expected += _given(12, 4 * 24, 8) + _exchanged([24 * 48 // RANKS, 48 // RANKS, 48 * 12 // RANKS])
    assert sent == [expected] * 2


@full
def check_columns_followed_by_rows_send_nothing_between():
    layers = [keras.layers.Dense(24, name="fc1"), keras.layers.Dense(48, activation="gelu", name="fc2")]
    layers = [keras.Input((24,)), *layers, keras.layers.Dense(12, use_bias=False, name="fc3")]
    sent = _sent_in_steps(layers, {"fc1": "columns", "fc2": "columns", "fc3": "rows"})
    a, b, c = (4 * 12 * width for width in (24, 24, 12))
    expected = ColumnsWithin.cost(a, b, RANKS, has_gradient=False) + SummandsWithin.cost(b, c, RANKS)
    weights = [24 * 24 // RANKS, 24 // RANKS, 24 * 48 // RANKS, 48 // RANKS, 48 * 12 // RANKS]
    expected += _given(12, 4 * 24, 8) + _exchanged(weights)
    assert sent == [expected] * 2


@full
def check_of_weights_that_are_not_split_the_owned_sum_is_sent_within_a_group():
    layers = [keras.layers.Dense(24, name="first"), keras.layers.Dense(48, name="fc"), keras.layers.Dense(12)]
    sent = _sent_in_steps([keras.Input((24,)), *layers], {"fc": "columns"})
    a, b = 4 * 12 * 24, 4 * 12 * 48
    expected = ColumnsWithin.cost(a, b, RANKS) + _given(12, 4 * 24, 8)
    whole = [24 * 24, 24, 48 * 12, 12]
    expected += _exchanged(whole) + _made_alike(whole) + _exchanged([24 * 48 // RANKS, 48 // RANKS])
    assert sent == [expected] * 2


# What ranks compute in other ways


class Rounds(keras.layers.Layer):
    """Multiplies by what is nearly 1, by another number on each rank, as another order of additions would."""

    def call(self, inputs):
        return inputs * (1.0 + 1e-6 * (comm.rank % RANKS))


@full
def check_weights_stay_equal_where_ranks_of_a_group_round_in_their_own_ways():
    """Of a table, whose gradient is rows, of statistics, of a kernel and of one that few bytes are sent of."""

    def net():
        x = inputs = keras.Input((6,), dtype="int32")
        x = Rounds()(keras.layers.Embedding(4000, 8)(x))
        x = keras.layers.BatchNormalization()(keras.layers.Flatten()(x))
        x = Rounds()(keras.layers.Dense(22, activation="tanh", name="fc1")(Rounds()(x)))
        return keras.Model(inputs, keras.layers.Dense(10)(Rounds()(keras.layers.Dense(13, name="fc2")(x))))

    generator = np.random.default_rng(0)
    data = generator.integers(0, 4000, (96, 6)), generator.integers(0, 10, 96)
    model = build(classifier(adam, net))
    fit(model, data=data, layers={"fc1": "columns", "fc2": "rows"})
    sums = [float(np.sum(one, dtype="float64")) for one in [*model.get_weights(), *model.optimizer.variables]]
    assert all(other == sums for other in comm.all_gather_object(sums))


# Callbacks and files


@full
def check_a_saved_epoch_is_that_of_one_process_and_loads_with_its_optimizer():
    saves_epochs(group=RANKS)


@full
def check_a_callback_that_predicts_alone_has_whole_layers():
    predicts_in_callbacks(group=RANKS)


class Stops(keras.callbacks.Callback):
    """Stops behind the second step, and halves the learning rate, on one rank."""

    def __init__(self, rank):
        super().__init__()
        self.rank, self.steps = rank, 0

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1
        if comm.rank == self.rank and self.steps == 2:
            self.model.stop_training = True
        if comm.rank == 0 and self.steps == 1:
            self.model.optimizer.learning_rate = 0.01


@full
def check_what_a_callback_of_any_rank_decides_holds_on_all():
    for rank in {1, comm.size - 1}:
        model, stops = build(classifier(sgd)), Stops(rank)
        fit(model, stops, data=classes(96))
        assert stops.steps == 2 and float(model.optimizer.learning_rate) == pytest.approx(0.01)
        sums = [float(sum(np.sum(value, dtype="float64") for value in model.get_weights()))]
        assert len({tuple(other) for other in comm.all_gather_object(sums)}) == 1


@full
def check_callbacks_that_decide_decide_the_same_as_in_one_process():
    decides_in_callbacks(group=RANKS)


def check_fits_with_groups_with_workers_and_without_split_layers_go_on_with_the_optimizers_state():
    model, reference = build(classifier(adam)), build(classifier(adam))
    fit(model)
    fit(model, layers={"fc2": "columns"})
    for split in (None, Split(BOTH)):
        distribute = Distribute("ring", model_parallel=split)
        x, y = easyscale.shard(*classes())
        model.fit(x, y, batch_size=easyscale.local_batch(24), shuffle=False, verbose=0, callbacks=[distribute])
    fit(model)
    fit(reference, layers=None, epochs=8)
    assert largest_difference(model, reference) <= 1e-5
    loss, accuracy = model.evaluate(*classes(), verbose=0)
    assert [loss, accuracy] == pytest.approx(reference.evaluate(*classes(), verbose=0), rel=1e-4)


@full
def check_an_interrupted_fit_says_which_weights_are_lost():
    model = build(classifier(sgd))
    with (
        pytest.warns(EasyScaleWarning, match="are NaN where other workers had them"),
        pytest.raises(RuntimeError, match="a callback that fails"),
    ):
        fit(model, Fails())
    known = [float(np.mean(np.isfinite(weight))) for weight in model.get_weights()]
    assert [part < 1 for part in known] == [False, False, True, True, True, False, False, False]
    comm.barrier()


def check_heads_draw_random_numbers_of_their_own_and_other_layers_those_of_their_group():
    """The state of each generator in a step: of two layers of dropout, and of attention."""

    def net():
        x = inputs = keras.Input((6, 8))
        x = keras.layers.Dropout(0.2)(x)
        x = keras.layers.MultiHeadAttention(4, 3, dropout=0.2, name="attention")(x, x)
        return keras.Model(inputs, keras.layers.Dense(10)(keras.layers.Dropout(0.2)(keras.layers.Flatten()(x))))

    class Draws(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            states = [one for one in self.model.variables if one.name == "seed_generator_state"]
            heads = [id(one) for one in self.model.get_layer("attention").variables]
            self.seeds = [[int(one.numpy()[0]), id(one) in heads] for one in states]

    model, draws = build(classifier(sgd, net)), Draws()
    before = [one.numpy()[0] for one in model.variables if one.name == "seed_generator_state"]
    data = np.random.default_rng(0).normal(size=(24, 6, 8)).astype("float32"), np.arange(24) % 10
    fit(model, draws, data=data, layers={"attention": "heads"})
    all_ranks = comm.all_gather_object(draws.seeds)
    for generator in zip(*all_ranks, strict=True):
        seeds, (is_of_heads, *_) = zip(*generator, strict=True)
        assert len(set(seeds)) == (comm.size if is_of_heads else GROUPS)
    after = [one.numpy()[0] for one in model.variables if one.name == "seed_generator_state"]
    assert comm.rank >= RANKS or before == after  # of the first group


# What is refused


def _refused(message, layers=BOTH, group=RANKS, exchange="ring", early=False, **options):
    with pytest.raises(ValueError, match=message) as raised:
        distribute = Distribute(exchange, model_parallel=Split(layers, group=group), **options)
        data = easyscale.shard(*classes())
        build(classifier(sgd)).fit(*data, verbose=0, callbacks=[distribute])
    assert "\n" not in str(raised.value)
    easyscale.mesh.set_ranks_of_worker(1)
    comm.barrier()


@full
def check_what_cannot_be_is_one_line():
    _refused("must be an integer of 2 or more, 'all' or `None`. Received: group=1", group=1)
    _refused(rf"Received: {comm.size} ranks, group={comm.size + 1}\. Start {comm.size + 1}", group=comm.size + 1)
    _refused(r"counts what is sent across workers\. Received: group=", layers="auto")
    _refused("Received: update='replicated'. Use `update='sharded'`", update="replicated")
    _refused("writes no checkpoints of its own yet. Received: `checkpoint`", checkpoint="folder")
    _refused(r"Received: Dense 'last' of 10 columns, 12 ranks", {"last": "columns"}, 12) if comm.size == 12 else None


@full
def check_an_optimizer_that_was_wrapped_by_hand_is_one_line():
    distribute = Distribute("ring", model_parallel=Split(BOTH, group=RANKS))
    model, data = build(classifier(lambda: easyscale.DistributedOptimizer(sgd(), "ring"))), easyscale.shard(*classes())
    with pytest.raises(ValueError, match="`Distribute` makes the `DistributedOptimizer`. Received: one by hand"):
        model.fit(*data, batch_size=easyscale.local_batch(24), verbose=0, callbacks=[distribute])
    comm.barrier()


@full
def check_data_that_were_divided_before_are_one_line():
    easyscale.mesh.set_ranks_of_worker(1)
    data = easyscale.shard(*classes())
    distribute = Distribute("ring", model_parallel=Split(BOTH, group=RANKS))
    with pytest.raises(ValueError, match=r"must be made before data are divided.*shard called before"):
        build(classifier(sgd)).fit(*data, verbose=0, callbacks=[distribute])
    comm.barrier()


@full
def check_ranks_of_a_group_with_different_batches_are_one_line():
    distribute = Distribute("ring", model_parallel=Split(BOTH, group=RANKS))
    x, y = classes(30 + comm.rank)
    with pytest.raises(ValueError, match="must be given batches of the same shapes"):
        build(classifier(sgd)).fit(x, y, batch_size=64, verbose=0, callbacks=[distribute])
    comm.barrier()
