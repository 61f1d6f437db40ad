"""What a `fit()` on one process does with the checkpoints of another; on several ranks: `tests/faults`."""

import collections

import keras
import numpy as np
import pytest
import tensorflow as tf

import easyscale
from easyscale.checkpoint.snapshot_memory import SnapshotMemory
from easyscale.errors import EasyScaleError, EasyScaleWarning
from easyscale.training.broadcast_arrays import broadcast_arrays

X = np.random.default_rng(0).normal(size=(24, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def model(optimizer="adam", built=True, dropouts=0):
    keras.utils.set_random_seed(1)
    layers = [keras.Input((4,))] * built + [keras.layers.Dropout(0.1) for _ in range(dropouts)]
    made = keras.Sequential([*layers, keras.layers.Dense(1)])
    made.compile(optimizer, "mse")
    return made


def fit(made, folder, *callbacks, epochs=2, batch_size=8, verbose=0, samples=24):
    callbacks = [easyscale.callbacks.Distribute(checkpoint=folder, every=2), *callbacks]
    options = {"epochs": epochs, "shuffle": False, "verbose": verbose, "callbacks": callbacks}
    return made.fit(X[:samples], Y[:samples], batch_size=batch_size, **options)


@pytest.mark.parametrize("built", [True, False])
def test_a_fit_that_had_ended_gives_its_weights_to_a_new_model(tmp_path, built):
    first, second = model(built=built), model(built=built)
    fit(first, tmp_path)
    fit(second, tmp_path)
    assert second.optimizer.iterations == 6
    for mine, theirs in zip(second.get_weights(), first.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_the_next_fit_begins_with_its_own_first_epoch(tmp_path):
    fit(model(), tmp_path / "one")
    again = model()
    fit(again, tmp_path / "one")
    assert fit(again, tmp_path / "two", epochs=3).epoch == [0, 1, 2]
    assert again.optimizer.iterations == 15


def test_a_fit_that_had_ended_goes_on_with_the_logs_of_one_that_had_not(tmp_path):
    whole, half, rest = (fit(model(), tmp_path / name, epochs=n) for name, n in (("a", 4), ("b", 2), ("b", 4)))
    assert rest.history["loss"][:2] == half.history["loss"]
    assert rest.history == whole.history


def test_callbacks_do_not_hear_again_of_a_step_that_was_made_before(tmp_path):
    heard = []

    class EndedError(Exception):
        pass

    class Hears(keras.callbacks.Callback):
        ends = True

        def on_train_batch_begin(self, batch, logs=None):
            heard.append(f"begin of {batch}")

        def on_train_batch_end(self, batch, logs=None):
            heard.append(f"end of {batch}")

        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1 and self.ends:
                raise EndedError

    with pytest.raises(EndedError):  # the last checkpoint is that before the third step
        fit(model(), tmp_path, Hears())
    files = keras.callbacks.ModelCheckpoint(tmp_path / "{epoch}-{batch}.keras", save_freq=1)
    first, Hears.ends = list(heard), False
    heard.clear()
    fit(model(), tmp_path, Hears(), files)
    assert first == [f"{hook} of {batch}" for batch in range(3) for hook in ("begin", "end")]
    assert heard == first[4:] + first
    written = sorted(path.stem for path in tmp_path.glob("*.keras"))
    assert written == ["1-3", "2-1", "2-2", "2-3"]


def test_metrics_that_are_others_are_said_and_count_the_rest_of_the_epoch(tmp_path):
    def with_metric(metric):
        made = model()
        made.compile("adam", "mse", metrics=[metric])
        return made

    with pytest.raises(KeyboardInterrupt):
        fit(with_metric("mae"), tmp_path, Stops(3), batch_size=4)
    with pytest.warns(EasyScaleWarning, match=r"metrics should be the model's.*'mae'.*'mse'.*epoch 1"):
        rest = fit(with_metric("mse"), tmp_path, epochs=1, batch_size=4)
    assert set(rest.history) == {"loss", "mse"}


def test_where_servers_do_not_wait_an_epoch_begins_anew_and_that_is_said(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        fit(model(), tmp_path, Stops(3), batch_size=4)  # of six batches, after a checkpoint of two
    again = model()
    again.optimizer = easyscale.DistributedOptimizer(again.optimizer, "parameter_server:async")
    with pytest.warns(EasyScaleWarning, match="in the middle of epoch 1, .* All of its data is trained on again"):
        fit(again, tmp_path, epochs=1, batch_size=4, verbose=2)
    assert again.optimizer.iterations == 2 + 6


def test_steps_of_other_length_lose_no_data(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        fit(model(), tmp_path, Stops(3), batch_size=4)  # of six batches, after a checkpoint of two
    longer = model()
    longer.compile("adam", "mse", steps_per_execution=2)
    fit(longer, tmp_path, epochs=1, batch_size=4)
    assert longer.optimizer.iterations == 6


@pytest.mark.parametrize("batch_size", [1, 2, 8])
def test_samples_that_were_trained_on_are_passed_over_in_batches_of_another_size(tmp_path, batch_size):
    with pytest.raises(KeyboardInterrupt):
        fit(model(), tmp_path, Stops(3), batch_size=4)  # after a checkpoint of two batches
    again, expected = model(), model()
    fit(again, tmp_path, epochs=1, batch_size=batch_size)
    expected.fit(X[:8], Y[:8], batch_size=4, shuffle=False, verbose=0)
    expected.fit(X[8:], Y[8:], batch_size=batch_size, shuffle=False, verbose=0)
    assert again.optimizer.iterations == 2 + 16 // batch_size
    for mine, theirs in zip(again.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)


def test_batches_of_a_dataset_may_have_another_size(tmp_path):
    def train(batch_size, *callbacks):
        made, data = model(), tf.data.Dataset.from_tensor_slices((X, Y)).batch(batch_size).prefetch(1)
        made.fit(data, verbose=0, callbacks=[easyscale.callbacks.Distribute(checkpoint=tmp_path, every=2), *callbacks])
        return int(made.optimizer.iterations)

    with pytest.raises(KeyboardInterrupt):
        train(4, Stops(3))  # after a checkpoint of two batches
    assert train(2) == 2 + 8


def test_a_batch_within_which_a_checkpoint_lies_is_trained_on_as_a_whole_and_that_is_said(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        fit(model(), tmp_path, Stops(5), batch_size=4)  # after a checkpoint of four batches
    again = model()
    with pytest.warns(EasyScaleWarning, match="between two batches.* lies within batch 3 of epoch 1 now.* as a whole"):
        fit(again, tmp_path, epochs=1, batch_size=6)
    assert again.optimizer.iterations == 4 + 2


def test_an_epoch_that_has_become_shorter_is_over_and_that_is_said(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        fit(model(), tmp_path, Stops(5), batch_size=4)  # of six batches, after a checkpoint of four
    again = model()
    with pytest.warns(EasyScaleWarning, match=r"as many steps .* Received: 4 of epoch 1 in .*, and an epoch of 3 now"):
        rest = fit(again, tmp_path, batch_size=4, samples=12)
    assert again.optimizer.iterations == 4 + 3
    assert rest.epoch == [0, 1] and min(rest.history["loss"]) > 0


class Stops(keras.callbacks.Callback):
    """Interrupts training when so many batches have begun."""

    def __init__(self, batches):
        super().__init__()
        self.batches = batches

    def on_train_batch_begin(self, batch, logs=None):
        if batch == self.batches:
            raise KeyboardInterrupt


def test_a_folder_to_resume_from_is_for_the_first_fit(tmp_path, monkeypatch):
    fit(model(), tmp_path / "one")
    monkeypatch.setenv("EASYSCALE_RESUME", str(tmp_path / "one"))
    again = model()
    again.optimizer = easyscale.DistributedOptimizer(again.optimizer)
    monkeypatch.setattr(again.optimizer.workers.communicator.membership, "_fits", 0)
    assert fit(again, tmp_path / "two", epochs=3).epoch == [0, 1, 2]
    assert again.optimizer.iterations == 9
    assert fit(again, tmp_path / "three", epochs=3).epoch == [0, 1, 2]
    assert again.optimizer.iterations == 18


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (lambda: model("sgd"), r"of the same optimizers\. Received: \[\['Adam'\]\] in .*, \[\['SGD'\]\] in the model"),
        (lambda: model(dropouts=1), "of the same model. Received: 0 layers with random numbers in .*, 1 in the model"),
    ],
)
def test_a_checkpoint_of_another_training_is_refused(tmp_path, other, what):
    fit(model(), tmp_path)
    with pytest.raises(EasyScaleError, match=what):
        fit(other(), tmp_path, epochs=3)


def test_an_optimizer_with_more_state_than_that_of_the_checkpoint_is_refused(tmp_path):
    fit(model(keras.optimizers.Adam()), tmp_path)
    with pytest.raises(EasyScaleError, match="of the same optimizers"):
        fit(model(keras.optimizers.Adam(amsgrad=True)), tmp_path, epochs=3)


def test_training_goes_on_without_a_checkpoint_if_there_is_no_memory_for_it(tmp_path, monkeypatch):
    def empty(self, shape, dtype):
        raise MemoryError("no memory")

    monkeypatch.setattr(SnapshotMemory, "empty", empty)
    made = model()
    with pytest.warns(EasyScaleWarning, match="must have room, in memory .* Received: no memory. Training goes on"):
        fit(made, tmp_path)
    assert made.optimizer.iterations == 6 and not list(tmp_path.iterdir())


class Remembers(keras.callbacks.Callback):
    """Has attributes of kinds that not every file can hold."""

    def __init__(self):
        super().__init__()
        self.names, self.long = np.array(["a", "b"]), np.array(["cat", "horse"])
        self.counts, self.by_name = collections.Counter(), collections.defaultdict(list)
        self.when, self.pairs = np.datetime64("2020-01-01"), np.zeros(2, [("a", "i4"), ("b", "f4")])
        self.last = collections.namedtuple("Best", "epoch loss")(0, 1.0)

    def on_epoch_end(self, epoch, logs=None):
        self.long = np.array(["cat", "mouse"])
        self.counts[str(epoch)] += 1
        self.by_name["loss"].append(epoch)


def test_what_callbacks_remember_is_stored_or_left_alone(tmp_path):
    fit(model(), tmp_path, Remembers())
    again = Remembers()
    fit(model(), tmp_path, again, epochs=3)
    assert again.counts == {"0": 1, "1": 1, "2": 1} and isinstance(again.counts, collections.Counter)
    assert again.by_name["loss"] == [0, 1, 2] and again.by_name["other"] == []
    assert again.long.tolist() == ["cat", "mouse"] and again.last.loss == 1.0


def test_a_folder_must_have_a_name():
    with pytest.raises(TypeError, match="`checkpoint` must be the path of a folder"):
        easyscale.callbacks.Distribute(checkpoint="")
    easyscale.callbacks.Distribute(checkpoint="run", every=np.int64(5))


@pytest.mark.parametrize("argument", [{"every": 5}, {"every": "90s"}, {"keep": 1}])
def test_how_often_and_how_many_need_a_folder(argument):
    (name,) = argument
    with pytest.raises(
        ValueError, match=rf"`{name}` needs `checkpoint`, .* Received: {name}=.*, checkpoint=None\. Pass"
    ):
        easyscale.callbacks.Distribute(**argument)


def test_gradients_that_ranks_accumulate_are_all_in_a_checkpoint(run_ranks):
    """The chief goes on with the sum, which is what counts when they are exchanged."""

    def on_rank(comm):
        inner = keras.optimizers.SGD(0.1, gradient_accumulation_steps=4)
        optimizer = easyscale.DistributedOptimizer(inner, "ring", communicator=comm)
        optimizer.build([keras.Variable(np.zeros((2, 3), "float32"))])
        inner._iterations.assign(1)  # in the midst of an accumulation
        optimizer.shard()
        (mine,) = inner._accumulated_gradients
        mine.assign(np.full((2, 3), comm.rank + 1.0))
        values = optimizer.collect_state(SnapshotMemory())
        values = broadcast_arrays(comm, {str(index): value for index, value in enumerate(values)}, root=0)
        optimizer.set_state(list(values.values()))
        return keras.ops.convert_to_numpy(mine)

    for rank, found in enumerate(run_ranks(3, on_rank)):
        np.testing.assert_array_equal(found, np.full((2, 3), 6.0 if rank == 0 else 0.0))


def test_a_folder_for_two_fits_of_one_script_is_told_of(tmp_path, capfd):
    fit(model(), tmp_path)
    again = model()
    fit(again, tmp_path)
    assert f"'{tmp_path}' has the end of another `fit()` of this script: nothing is left" in capfd.readouterr().err
