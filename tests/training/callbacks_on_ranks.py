"""Keras's callbacks and the user's own: the chief writes once what one process writes, and decisions hold on all ranks.

Each check trains on all ranks and compares with the same training by one process: steps, weights, history and files.
"""

import contextlib
import io
import shutil
import tempfile
import zipfile
from pathlib import Path
from unittest import mock

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow.summary as summary  # not `tf.summary`, which this import replaces
from keras.callbacks import (
    BackupAndRestore,
    CSVLogger,
    EarlyStopping,
    LambdaCallback,
    LearningRateScheduler,
    ModelCheckpoint,
    ReduceLROnPlateau,
    SwapEMAWeights,
    TensorBoard,
    TerminateOnNaN,
)
from models import TOLERANCE, assert_as_one_process, assert_equal_ranks, classify, different_start, digits

import easyscale
from easyscale.callbacks import Distribute

comm = easyscale.communicator.get()
GLOBAL_BATCH = 24
STEPS = 5  # in an epoch
DATA = digits(STEPS * GLOBAL_BATCH)
UNEVEN = tuple(one[: (STEPS - 1) * GLOBAL_BATCH + 1] for one in DATA)  # in the last step only the chief has data


def _build(optimizer=None):
    layers = [
        keras.Input((8, 8, 1), name="image"),
        keras.layers.Flatten(name="flat"),
        keras.layers.Dense(16, activation="relu", name="hidden"),
        keras.layers.Dense(10, name="logits"),
    ]
    model = keras.Sequential(layers, name="model")
    return classify(model, optimizer or keras.optimizers.SGD(0.1, momentum=0.9, name="sgd"))


def _validation():
    """Digits whose labels are wrong on the last rank: there the loss rises while it falls on the others."""
    x, y = DATA[0][:60], DATA[1][:60]
    is_last = np.arange(60) % comm.size == comm.size - 1
    return x, np.where(is_last, (y + 1) % 10, y)


_models = {}


def _begin(build, shard):
    """Return a new model, or an older one made as new: so each is traced once for all checks."""
    new = build()
    new.optimizer.build(new.trainable_variables)
    model = _models.setdefault((build, shard), new)
    for variables, values in ((model.weights, new.weights), (model.optimizer.variables, new.optimizer.variables)):
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
    return model


def _batches(x, y, size):
    options = tf.data.Options()
    options.autotune.enabled = False  # its thread holds up, for seconds, who lets go of data before their end
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(size).with_options(options)


def _train(callbacks, shard, data=DATA, build=_build, **options):
    """Return a model and its history after three epochs on this rank's part of the data, or on all of it."""
    model, parts, size = _begin(build, shard), (data, _validation()), GLOBAL_BATCH
    if shard:
        parts, size = [easyscale.shard(*part) for part in parts], easyscale.local_batch(size)
    data, validation = (_batches(*part, size) for part in parts)
    options = {"epochs": 3, "shuffle": False, "verbose": 0, "validation_data": validation, **options}
    return model, model.fit(data, callbacks=callbacks, **options)


def _folder():
    """An empty folder that all ranks see."""
    return Path(comm.share(tempfile.mkdtemp() if easyscale.is_chief() else None)[0])


def _done_with(folder):
    comm.share(None)
    if easyscale.is_chief():
        shutil.rmtree(folder)


def _as_one_process(make_callbacks, on=None, place=None, **options):
    """Compare `fit()` on all ranks with that of one process: steps, weights, history, files. Return the steps.

    Args:
        make_callbacks: Takes a folder. Each rank is given another; only the chief's may get files, those that the one
            process writes.
        on: Int. The only rank that has the callbacks. Defaults to `None`: all.
        place: Int. Where `Distribute` stands in the list. Defaults to `None`: at the end.
    """
    folder, steps = _folder(), {}

    def train(name, callbacks, shard):
        model, history = _train(callbacks, shard, **options)
        steps[name] = int(model.optimizer.iterations)
        return model, history

    def distributed():
        mine = _made(folder / name)
        callbacks = make_callbacks(mine) if on in (None, easyscale.rank()) else []
        callbacks.insert(len(callbacks) if place is None else place, Distribute())
        return train(name, callbacks, shard=True)

    name = str(easyscale.rank())
    assert_as_one_process(distributed, lambda: train("alone", make_callbacks(_made(folder / "alone")), shard=False))
    assert_equal_ranks([np.array(steps[name])])
    _assert_only_the_chief_has_written(folder)
    if easyscale.is_chief():
        assert steps[name] == steps["alone"], steps
        _assert_same_files(folder / name, folder / "alone")
    _done_with(folder)
    return steps[name]


def _made(folder):
    folder.mkdir()
    return folder


def _assert_only_the_chief_has_written(folder):
    mine = folder / str(easyscale.rank())
    assert easyscale.is_chief() or not list(mine.iterdir()), "another rank than the chief wrote"


def _assert_same_files(ours, theirs):
    same = {".keras": _same_model, ".h5": _same_weights, ".csv": _same_table}
    names = [sorted(_name(path, one) for path in one.rglob("*.*")) for one in (ours, theirs)]
    assert names[0] == names[1], names
    for name in names[0]:
        if name.suffix in same:
            same[name.suffix](ours / name, theirs / name)


def _name(path, folder):
    """A file's path in `folder`, without the time and process in the names of TensorBoard's files."""
    return path.relative_to(folder).with_name(path.name.split(".out.")[0])


def _same_model(ours, theirs):
    models = [keras.models.load_model(path) for path in (ours, theirs)]
    assert models[0].get_config() == models[1].get_config()
    assert models[0].get_compile_config() == models[1].get_compile_config()
    with zipfile.ZipFile(ours) as a, zipfile.ZipFile(theirs) as b:
        _same_weights(*(io.BytesIO(one.read("model.weights.h5")) for one in (a, b)))


def _same_weights(ours, theirs):
    """Compare weights and the optimizer's state, under the names that stock Keras gives them."""
    ours, theirs = _arrays(ours), _arrays(theirs)
    assert ours.keys() == theirs.keys()
    assert "optimizer/vars/2" in ours, "no optimizer state"
    for name, array in ours.items():
        np.testing.assert_allclose(array, theirs[name], atol=TOLERANCE, err_msg=name)


def _arrays(path):
    arrays = {}
    with h5py.File(path) as file:
        file.visititems(lambda name, item: arrays.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
    return arrays


def _same_table(ours, theirs):
    ours, theirs = ([line.split(",") for line in path.read_text().splitlines()] for path in (ours, theirs))
    assert ours[0] == theirs[0]
    np.testing.assert_allclose(np.array(ours[1:], float), np.array(theirs[1:], float), rtol=1e-4)


# Files


def check_model_checkpoint_writes_the_weights_of_each_epoch():
    _as_one_process(lambda folder: [ModelCheckpoint(folder / "{epoch}.weights.h5", save_weights_only=True)])


def check_model_checkpoint_writes_the_model_of_each_epoch():
    _as_one_process(lambda folder: [ModelCheckpoint(folder / "{epoch}.keras")], place=0)


def check_model_checkpoint_keeps_the_best_by_the_metrics_of_all_ranks():
    def callbacks(folder):
        return [
            ModelCheckpoint(folder / "{epoch}-{val_accuracy:.3f}.keras", save_best_only=True),
            ModelCheckpoint(folder / "worst.keras", "val_loss", save_best_only=True, mode="max"),
        ]

    _as_one_process(callbacks)


def check_model_checkpoint_after_every_second_batch_of_uneven_data():
    def callbacks(folder):
        return [ModelCheckpoint(folder / "{epoch}-{batch}.weights.h5", save_weights_only=True, save_freq=2)]

    assert _as_one_process(callbacks, data=UNEVEN) == 3 * STEPS


def check_stock_keras_goes_on_with_what_model_checkpoint_wrote():
    folder = _folder()

    def load():
        return keras.models.load_model(folder / "2.keras")

    def continued():
        _train([ModelCheckpoint(folder / "{epoch}.keras"), Distribute()], shard=True, epochs=2)
        model, _ = _train([Distribute()], shard=True, build=load, epochs=1)
        return model

    assert_as_one_process(continued, lambda: _train([], shard=False)[0])
    model = load()
    assert type(model.optimizer) is keras.optimizers.SGD and int(model.optimizer.iterations) == 2 * STEPS
    _done_with(folder)


def check_csv_logger_has_the_metrics_of_all_ranks():
    _as_one_process(lambda folder: [CSVLogger(folder / "log.csv")])


class _Interrupting(keras.callbacks.Callback):
    def __init__(self, steps):
        super().__init__()
        self.steps = steps

    def on_train_batch_begin(self, batch, logs=None):
        if int(self.model.optimizer.iterations) == self.steps:
            raise KeyboardInterrupt


def _train_interrupted(folder, distribute, shard, steps, save_freq):
    """Train with a backup and stop after so many steps; then train again, with another model."""
    backup = folder / "backup"
    try:
        _train([BackupAndRestore(backup, save_freq), _Interrupting(steps), *distribute()], shard)
        raise AssertionError("not interrupted")
    except KeyboardInterrupt:
        assert backup.exists() == (not shard or easyscale.is_chief())
    result = _train([*distribute(), BackupAndRestore(backup, save_freq)], shard, build=lambda: _build())
    assert not backup.exists()
    return result


def _restored_as_one_process(steps, save_freq, alone):
    folder = _folder()
    mine = _made(folder / str(easyscale.rank()))
    assert_as_one_process(
        lambda: _train_interrupted(mine, lambda: [Distribute()], True, steps, save_freq), lambda: alone(folder)
    )
    _assert_only_the_chief_has_written(folder)
    _done_with(folder)


def check_backup_and_restore_ends_as_if_there_had_been_no_interruption():
    def uninterrupted(folder):
        return _train([], shard=False)[0]

    _restored_as_one_process(steps=2 * STEPS + 2, save_freq="epoch", alone=uninterrupted)


def check_backup_and_restore_of_every_second_batch():
    """Keras begins the epoch again with the weights of its middle."""

    def interrupted(folder):
        return _train_interrupted(folder / "alone", list, False, STEPS + 3, 2)

    _restored_as_one_process(steps=STEPS + 3, save_freq=2, alone=interrupted)


def check_the_progress_bar_and_history_have_the_metrics_of_all_ranks():
    different_start()
    with contextlib.redirect_stdout(io.StringIO()) as out:
        _, history = _train([Distribute()], shard=True, epochs=1, verbose=2)
    assert_equal_ranks([np.array(list(history.history.values()))])
    shown = " - ".join(f"{name}: {values[0]:.4f}" for name, values in sorted(history.history.items()))
    assert (shown in out.getvalue()) == easyscale.is_chief() == bool(out.getvalue())


def check_tensor_board_writes_the_metrics_of_all_ranks():
    for update_freq in ("epoch", 1):
        numbers = []

        def scalar(name, data, step=None, numbers=numbers, **options):
            numbers.append((name, int(step), float(data)))

        def callbacks(folder, update_freq=update_freq):
            return [TensorBoard(folder, write_graph=True, update_freq=update_freq)]

        with mock.patch.object(summary, "scalar", scalar):  # it needs a package of its own
            _as_one_process(callbacks)
        assert bool(numbers) == easyscale.is_chief()
        alone, ours = np.split(np.array(numbers, object).reshape(-1, 3), 2)
        assert (ours[:, :2] == alone[:, :2]).all()
        of_all = [not name.startswith("batch_") for name in ours[:, 0]]  # a batch's are the chief's own
        np.testing.assert_allclose(ours[of_all, 2].astype(float), alone[of_all, 2].astype(float), rtol=1e-4)


class _Saving(keras.callbacks.Callback):
    """A user's own: all ranks save, within an epoch and at its end, and read what the chief has saved."""

    def __init__(self, folder, chiefs):
        super().__init__()
        self.folder, self.chiefs = folder, chiefs

    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            self.model.save_weights(self.folder / "batch.weights.h5")

    def on_epoch_end(self, epoch, logs=None):
        self.model.save(self.folder / f"{epoch}.keras")
        self.model.save_weights(self.folder / "latest.weights.h5")
        if epoch == 1:
            self.model.export(self.folder / "exported", verbose=False)

    def on_epoch_begin(self, epoch, logs=None):
        if epoch > 0:
            _arrays(self.chiefs / "latest.weights.h5")
            keras.models.load_model(self.chiefs / f"{epoch - 1}.keras")


def check_a_callback_of_ones_own_that_saves_on_all_ranks_writes_once():
    def callbacks(folder):
        return [_Saving(folder, folder.with_name("0") if folder.name.isdigit() else folder)]

    _as_one_process(callbacks)


def _all_of_keras(folder):
    return [
        BackupAndRestore(folder / "backup", delete_checkpoint=False),
        SwapEMAWeights(swap_on_epoch=True),
        ModelCheckpoint(folder / "{epoch}.keras"),
        LearningRateScheduler(lambda epoch, rate: rate * 0.9),
        ReduceLROnPlateau("val_accuracy", mode="min", patience=1, factor=0.5),
        CSVLogger(folder / "log.csv"),
        TerminateOnNaN(),
        EarlyStopping("val_accuracy", mode="min", patience=2, restore_best_weights=True),
        LambdaCallback(on_epoch_end=lambda epoch, logs: logs.update(epoch=epoch)),
    ]


def _averaging():
    return _build(keras.optimizers.SGD(0.1, momentum=0.9, use_ema=True, ema_momentum=0.9, name="sgd"))


def check_all_callbacks_at_once_with_distribute_first():
    _as_one_process(_all_of_keras, place=0, build=_averaging, data=UNEVEN)


def check_all_callbacks_at_once_with_distribute_in_the_middle():
    _as_one_process(_all_of_keras, place=4, build=_averaging)


def check_all_callbacks_at_once_with_distribute_last():
    _as_one_process(_all_of_keras, build=_averaging)


# Decisions at the end of an epoch


def check_early_stopping_restores_the_best_weights_on_all_ranks():
    def callbacks(folder):
        return [EarlyStopping("val_loss", mode="max", patience=1, restore_best_weights=True)]

    assert _as_one_process(callbacks, epochs=4) == 2 * STEPS


def check_early_stopping_on_the_metric_of_all_ranks():
    """On the last rank the validation's loss rises from the start; on all together it falls."""
    assert _as_one_process(lambda folder: [EarlyStopping("val_loss", patience=0)], epochs=4) == 4 * STEPS


def check_early_stopping_on_the_chief_alone_stops_all_ranks():
    def callbacks(folder):
        return [EarlyStopping("val_loss", mode="max", patience=1)]

    assert _as_one_process(callbacks, on=0, epochs=4) == 2 * STEPS


def check_reduce_lr_on_plateau():
    def callbacks(folder):
        return [ReduceLROnPlateau("val_loss", mode="max", patience=1, factor=0.5)]

    _as_one_process(callbacks, place=0)


def check_learning_rate_scheduler():
    _as_one_process(lambda folder: [LearningRateScheduler(lambda epoch, rate: rate * 0.5)])


class _Rates(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.rates = []

    def on_epoch_end(self, epoch, logs=None):
        self.rates.append(float(self.model.optimizer.learning_rate))


def check_a_learning_rate_that_differs_between_ranks_is_the_chiefs():
    rates = _Rates()
    scheduler = LearningRateScheduler(lambda epoch: 0.1 / (1 + epoch + easyscale.rank()))
    different_start()
    _train([scheduler, rates, Distribute()], shard=True)
    np.testing.assert_allclose(rates.rates, [0.1, 0.1 / 2, 0.1 / 3], rtol=1e-6)


def check_schedulers_of_several_optimizers_in_one():
    if not hasattr(keras.optimizers, "MultiOptimizer"):
        return

    def build():
        sgd, adam = keras.optimizers.SGD(0.1, name="sgd"), keras.optimizers.Adam(0.01, name="adam")
        return _build(keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(sgd, {".*hidden/.*": adam})))

    def callbacks(folder):
        schedule = LearningRateScheduler(lambda epoch, rate: rate * 0.5)
        return [schedule, ReduceLROnPlateau("val_loss", mode="max", patience=1, factor=0.5)]

    _as_one_process(callbacks, build=build)
    _as_one_process(callbacks, build=build, on=0, epochs=2)


# Moving averages of weights


def _swaps_and_saves(swap_on_epoch):
    def callbacks(folder):
        return [SwapEMAWeights(swap_on_epoch), ModelCheckpoint(folder / "{epoch}.weights.h5", save_weights_only=True)]

    return callbacks


def check_swap_ema_weights_in_validation():
    _as_one_process(_swaps_and_saves(swap_on_epoch=False), build=_averaging)


def check_swap_ema_weights_for_the_callbacks_after_it():
    _as_one_process(_swaps_and_saves(swap_on_epoch=True), build=_averaging)


def check_swap_ema_weights_under_loss_scaling():
    def build():
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9, use_ema=True, ema_momentum=0.9)
        return _build(keras.optimizers.LossScaleOptimizer(optimizer))

    for swap_on_epoch in (False, True):
        _as_one_process(lambda folder, swap=swap_on_epoch: [SwapEMAWeights(swap)], build=build, place=0)


# Epochs


def check_different_epochs_are_refused_on_all_ranks():
    with pytest.raises(easyscale.DesyncError, match="epochs=3 on rank 0, epochs=4 on rank 1"):
        _train([Distribute()], shard=True, epochs=4 if easyscale.rank() == 1 else 3)


# Decisions within an epoch


class _WarmUp(keras.callbacks.Callback):
    """A user's own: another learning rate in each step."""

    def on_train_batch_begin(self, batch, logs=None):
        self.model.optimizer.learning_rate = 0.02 * (batch + 1)


class _CoolDown(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.model.optimizer.learning_rate = 0.1 / (batch + 1)


def check_a_learning_rate_set_before_each_step_of_uneven_data():
    _as_one_process(lambda folder: [_WarmUp()], data=UNEVEN)


def check_a_learning_rate_set_on_the_chief_alone_holds_on_all_ranks():
    _as_one_process(lambda folder: [_WarmUp()], on=0, data=UNEVEN)
    _as_one_process(lambda folder: [_CoolDown()], on=0, place=0, data=UNEVEN)


def check_terminate_on_nan_stops_all_ranks_in_the_step_of_one():
    x, y = DATA[0].copy(), DATA[1]
    x[2 * GLOBAL_BATCH + 1] = np.nan  # in the third batch of the second rank
    for steps_per_execution, steps in ((1, 3), (2, 4)):
        model = classify(_build(), "sgd", steps_per_execution=steps_per_execution)
        _, history = _train([TerminateOnNaN(), Distribute()], shard=True, data=(x, y), build=lambda model=model: model)
        assert int(model.optimizer.iterations) == steps
        assert history.epoch == [0] and np.isnan(history.history["loss"]).all()
        assert set(history.history) == {"accuracy", "loss", "val_accuracy", "val_loss"}


def _stop(callback, number, at):
    if number == at:
        callback.model.stop_training = True


def _lambda(hook, at):
    callback = LambdaCallback(**{hook: lambda number, logs: _stop(callback, number, at)})
    return [callback]


class _StopBeforeStep(keras.callbacks.Callback):
    """A user's own, as the three below."""

    def on_train_batch_begin(self, batch, logs=None):
        _stop(self, batch, at=2)


class _StopAfterStep(keras.callbacks.Callback):
    def on_batch_end(self, batch, logs=None):
        _stop(self, batch, at=2)


class _StopBeforeEpoch(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        _stop(self, epoch, at=1)


class _StopAfterEpoch(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        _stop(self, epoch, at=1)


def check_a_stop_before_a_step_on_one_rank_stops_all_after_it():
    assert _as_one_process(lambda folder: _lambda("on_train_batch_begin", 2), on=1) == 3
    assert _as_one_process(lambda folder: [_StopBeforeStep()], on=2) == 3


def check_a_stop_after_a_step_on_one_rank_stops_all_after_it():
    assert _as_one_process(lambda folder: _lambda("on_train_batch_end", 2), on=1) == 3
    assert _as_one_process(lambda folder: [_StopAfterStep()], on=2) == 3


def check_a_stop_before_an_epoch_on_one_rank_leaves_all_one_step():
    assert _as_one_process(lambda folder: _lambda("on_epoch_begin", 1), on=1) == STEPS + 1
    assert _as_one_process(lambda folder: [_StopBeforeEpoch()], on=2) == STEPS + 1


def check_a_stop_after_an_epoch_on_one_rank_stops_all_after_it():
    assert _as_one_process(lambda folder: _lambda("on_epoch_end", 1), on=1) == 2 * STEPS
    assert _as_one_process(lambda folder: [_StopAfterEpoch()], on=2) == 2 * STEPS


class _StopAfterSteps(keras.callbacks.Callback):
    """A user's own that counts steps by itself."""

    def __init__(self, steps):
        super().__init__()
        self.left = steps

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        self.model.stop_training = self.left == 0


def check_stops_within_epochs_of_uneven_data_with_checkpoints():
    """The last step of an epoch is the chief's alone. It stops there, or some rank before."""

    def callbacks(who, steps):
        def make(folder):
            path = folder / "{epoch}-{batch}.weights.h5"
            decides = easyscale.rank() == who or folder.name == "alone"
            checkpoint = ModelCheckpoint(path, save_weights_only=True, save_freq=2)
            return [checkpoint, *([_StopAfterSteps(steps)] if decides else [])]

        return make

    for who, steps in ((0, STEPS), (1, STEPS - 1), (2, STEPS - 1), (0, 2 * STEPS - 1)):
        assert _as_one_process(callbacks(who, steps), data=UNEVEN) == steps
