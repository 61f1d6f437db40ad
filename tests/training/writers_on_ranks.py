"""Callbacks that write: the chief writes once what one process writes."""

import contextlib
import io
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow.summary as summary  # not `tf.summary`, which this import replaces
from covering import full
from folders import done_with, new_folder
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
from models import assert_as_one_process, assert_equal_ranks, different_start
from one_process import (
    STEPS,
    UNEVEN,
    arrays,
    as_one_process,
    assert_only_the_chief_has_written,
    made,
    small_net,
    train,
)

import easyscale
from easyscale.callbacks import Distribute


@full
def check_model_checkpoint_writes_the_weights_of_each_epoch():
    as_one_process(lambda folder: [ModelCheckpoint(folder / "{epoch}.weights.h5", save_weights_only=True)])


@full
def check_model_checkpoint_writes_the_model_of_each_epoch():
    as_one_process(lambda folder: [ModelCheckpoint(folder / "{epoch}.keras")], place=0)


@full
def check_model_checkpoint_keeps_the_best_by_the_metrics_of_all_ranks():
    def callbacks(folder):
        return [
            ModelCheckpoint(folder / "{epoch}-{val_accuracy:.3f}.keras", save_best_only=True),
            ModelCheckpoint(folder / "worst.keras", "val_loss", save_best_only=True, mode="max"),
        ]

    as_one_process(callbacks)


@full
def check_model_checkpoint_after_every_second_batch_of_uneven_data():
    def callbacks(folder):
        return [ModelCheckpoint(folder / "{epoch}-{batch}.weights.h5", save_weights_only=True, save_freq=2)]

    assert as_one_process(callbacks, data=UNEVEN) == 3 * STEPS


def check_model_checkpoint_in_the_midst_of_an_accumulation():
    def build():
        return small_net(keras.optimizers.Adam(0.01, gradient_accumulation_steps=3, name="adam"))

    def callbacks(folder):
        return [ModelCheckpoint(folder / "{epoch}-{batch}.keras", save_freq=2)]

    as_one_process(callbacks, data=UNEVEN, build=build)


@full
def check_stock_keras_goes_on_with_what_model_checkpoint_wrote():
    folder = new_folder()

    def load():
        return keras.models.load_model(folder / "2.keras")

    def continued():
        train([ModelCheckpoint(folder / "{epoch}.keras"), Distribute()], shard=True, epochs=2)
        model, _ = train([Distribute()], shard=True, build=load, epochs=1)
        return model

    assert_as_one_process(continued, lambda: train([], shard=False)[0])
    model = load()
    assert type(model.optimizer) is keras.optimizers.SGD and int(model.optimizer.iterations) == 2 * STEPS
    done_with(folder)


class _StateTree(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.tree = {}

    def on_epoch_end(self, epoch, logs=None):
        self.tree = self.model.get_state_tree("numpy_array")["optimizer_variables"]


def check_the_state_tree_in_a_callback_has_the_whole_state_of_the_optimizer():
    together, alone = _StateTree(), _StateTree()

    def adam():
        return small_net(keras.optimizers.Adam(0.01, name="adam"))

    assert_as_one_process(
        lambda: train([together, Distribute(update="sharded")], shard=True, build=adam, epochs=1),
        lambda: train([alone], shard=False, build=adam, epochs=1),
    )
    if easyscale.is_chief():
        keras.tree.assert_same_structure(together.tree, alone.tree)
        for found, expected in zip(keras.tree.flatten(together.tree), keras.tree.flatten(alone.tree), strict=True):
            assert found.shape == expected.shape
            np.testing.assert_allclose(found, expected, atol=1e-6)


@full
def check_csv_logger_has_the_metrics_of_all_ranks():
    as_one_process(lambda folder: [CSVLogger(folder / "log.csv")])


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
        train([BackupAndRestore(backup, save_freq), _Interrupting(steps), *distribute()], shard)
        raise AssertionError("not interrupted")
    except KeyboardInterrupt:
        assert backup.exists() == (not shard or easyscale.is_chief())
    result = train([*distribute(), BackupAndRestore(backup, save_freq)], shard, build=lambda: small_net())
    assert not backup.exists()
    return result


def _restored_as_one_process(steps, save_freq, alone):
    folder = new_folder()
    mine = made(folder / str(easyscale.rank()))
    assert_as_one_process(
        lambda: _train_interrupted(mine, lambda: [Distribute()], True, steps, save_freq), lambda: alone(folder)
    )
    assert_only_the_chief_has_written(folder)
    done_with(folder)


@full
def check_backup_and_restore_ends_as_if_there_had_been_no_interruption():
    def uninterrupted(folder):
        return train([], shard=False)[0]

    _restored_as_one_process(steps=2 * STEPS + 2, save_freq="epoch", alone=uninterrupted)


@full
def check_backup_and_restore_of_every_second_batch():
    """Keras begins the epoch again with the weights of its middle."""

    def interrupted(folder):
        return _train_interrupted(folder / "alone", list, False, STEPS + 3, 2)

    _restored_as_one_process(steps=STEPS + 3, save_freq=2, alone=interrupted)


class _Raising(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        raise KeyError("in a callback")


def check_an_exception_on_all_ranks_while_the_chief_saves_can_be_caught():
    folder = new_folder()
    for _ in range(2):
        with pytest.raises(KeyError, match="in a callback"):
            train([ModelCheckpoint(folder / "{epoch}.keras"), _Raising(), Distribute()], shard=True)
    train([ModelCheckpoint(folder / "{epoch}.keras"), Distribute()], shard=True)
    done_with(folder)


@full
def check_the_progress_bar_and_history_have_the_metrics_of_all_ranks():
    different_start()
    with contextlib.redirect_stdout(io.StringIO()) as out:
        _, history = train([Distribute()], shard=True, epochs=1, verbose=2)
    assert_equal_ranks([np.array(list(history.history.values()))])
    shown = " - ".join(f"{name}: {values[0]:.4f}" for name, values in sorted(history.history.items()))
    assert (shown in out.getvalue()) == easyscale.is_chief() == bool(out.getvalue())


@full
def check_tensor_board_writes_the_metrics_of_all_ranks():
    for update_freq in ("epoch", 1):
        numbers = []

        def scalar(name, data, step=None, numbers=numbers, **options):
            numbers.append((name, int(step), float(data)))

        def callbacks(folder, update_freq=update_freq):
            return [TensorBoard(folder, write_graph=True, update_freq=update_freq)]

        with mock.patch.object(summary, "scalar", scalar):  # it needs a package of its own
            as_one_process(callbacks)
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
            arrays(self.chiefs / "latest.weights.h5")
            keras.models.load_model(self.chiefs / f"{epoch - 1}.keras")


@full
def check_a_callback_of_ones_own_that_saves_on_all_ranks_writes_once():
    def callbacks(folder):
        return [_Saving(folder, folder.with_name("0") if folder.name.isdigit() else folder)]

    as_one_process(callbacks)


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
    return small_net(keras.optimizers.SGD(0.1, momentum=0.9, use_ema=True, ema_momentum=0.9, name="sgd"))


@full
def check_all_callbacks_at_once_with_distribute_first():
    as_one_process(_all_of_keras, place=0, build=_averaging, data=UNEVEN)


@full
def check_all_callbacks_at_once_with_distribute_in_the_middle():
    as_one_process(_all_of_keras, place=4, build=_averaging)


@full
def check_all_callbacks_at_once_with_distribute_last():
    as_one_process(_all_of_keras, build=_averaging)


# Moving averages of weights


def _swaps_and_saves(swap_on_epoch):
    def callbacks(folder):
        return [SwapEMAWeights(swap_on_epoch), ModelCheckpoint(folder / "{epoch}.weights.h5", save_weights_only=True)]

    return callbacks


@full
def check_swap_ema_weights_in_validation():
    as_one_process(_swaps_and_saves(swap_on_epoch=False), build=_averaging)


@full
def check_swap_ema_weights_for_the_callbacks_after_it():
    as_one_process(_swaps_and_saves(swap_on_epoch=True), build=_averaging)


@full
def check_swap_ema_weights_under_loss_scaling():
    def build():
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9, use_ema=True, ema_momentum=0.9)
        return small_net(keras.optimizers.LossScaleOptimizer(optimizer))

    for swap_on_epoch in (False, True):
        as_one_process(lambda folder, swap=swap_on_epoch: [SwapEMAWeights(swap)], build=build, place=0)
