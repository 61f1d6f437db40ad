"""Elastic trainings that lose the chief: `python losing_chiefs.py CASE ...` under `easyscale launch --elastic`."""

import json
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import keras
import numpy as np
from dying import FIRST_RANK, KilledIn, Through, die

import easyscale
from easyscale.training.training_state import TrainingState


def chiefs_are_lost():
    """Of four the chief is killed in a step, and the one after it in a validation: the next one shows and writes."""
    exchange, update, folder = sys.argv[2], sys.argv[3], Path(sys.argv[4])
    x = np.random.default_rng(0).normal(size=(12 * 8, 4)).astype("float32")
    y = x.sum(axis=1, keepdims=True)  # so each epoch is better than the one before, of which nobody may have the file
    keras.utils.set_random_seed(1)
    inputs = keras.Input((4,))
    model = keras.Model(inputs, keras.layers.Dense(1)(KilledIn(0, 8 + 3)(inputs)))
    model.compile(keras.optimizers.Adam(0.05), "mse")

    class Killed(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.epoch = epoch

        def on_test_end(self, logs=None):
            if (FIRST_RANK, self.epoch) == (1, 3):
                die()

    mine, best = easyscale.shard(x, y), keras.callbacks.ModelCheckpoint(folder / "best.keras", save_best_only=True)
    callbacks = [
        keras.callbacks.CSVLogger(str(folder / "log.csv")),
        keras.callbacks.BackupAndRestore(str(folder / "backup")),
        easyscale.callbacks.Distribute(exchange, update=update, checkpoint=folder / "run", every=3),
        best,
        Killed(),
    ]
    options = {"batch_size": easyscale.local_batch(12), "epochs": 6, "verbose": 2, "validation_data": mine}
    history = model.fit(*mine, callbacks=callbacks, **options).history
    assert history["workers"] in ([4, 3, 3, 2, 2, 2], [4, 3, 3, 3, 2, 2]), history
    communicator = easyscale.communicator.get()
    assert communicator.membership.initial_ranks == [2, 3]
    weights = [weight.tolist() for weight in model.get_weights()]
    assert communicator.all_gather_object(weights) == [weights] * 2
    if easyscale.is_chief():
        rows = (folder / "log.csv").read_text().splitlines()
        assert [row.split(",")[0] for row in rows] == ["epoch", *"01245"], "epoch 3 had no chief at its end"
        assert best.best == min(history["val_loss"])
        saved = keras.saving.load_model(folder / "best.keras", custom_objects={"KilledIn": Through})
        assert abs(saved.evaluate(x, y, verbose=0) - best.best) < 1e-5
        found, wrong = easyscale.checkpoint.folder.Checkpoints(folder / "run").read()
        assert (found.about["ended"], wrong) == (True, {})
        assert not (folder / "backup").exists()
    print(f"rank {FIRST_RANK} went on", flush=True)


def chiefs_are_lost_in_a_hook_and_in_a_validation():
    """The first as a callback evaluates, the second between two batches: each callback is called once all the same."""
    folder = Path(sys.argv[2])
    generator = np.random.default_rng(0)
    x, y = (generator.normal(size=(12 * 4, width)).astype("float32") for width in (4, 1))
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.05), "mse")
    mine, distribute, calls = easyscale.shard(x, y), easyscale.callbacks.Distribute(), []

    class DiesInEvaluation(keras.callbacks.Callback):
        def on_test_batch_end(self, batch, logs=None):
            if FIRST_RANK == 0 and batch == 1:
                die()

    class Evaluates(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            calls.append(epoch)
            deadly = [DiesInEvaluation()] if epoch == 1 else []
            self.model.evaluate(*mine, batch_size=4, verbose=0, callbacks=[distribute, *deadly])

    class Killed(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.epoch = epoch

        def on_test_batch_end(self, batch, logs=None):
            if (FIRST_RANK, self.epoch, batch) == (1, 2, 1):
                die()

    callbacks = [
        *([keras.callbacks.TensorBoard(folder / "board")] if find_spec("tensorboard") else []),
        keras.callbacks.CSVLogger(str(folder / "log.csv")),
        distribute,
        Evaluates(),
        Killed(),
    ]
    options = {"batch_size": easyscale.local_batch(12), "epochs": 5, "verbose": 2, "validation_data": mine}
    history = model.fit(*mine, callbacks=callbacks, **options).history
    assert (history["workers"][0], history["workers"][3:]) == (3, [1, 1]), history
    assert calls == [0, 1, 2, 3, 4], calls
    rows = [row.split(",")[0] for row in (folder / "log.csv").read_text().splitlines()]
    assert rows in (["epoch", *"0234"], ["epoch", *"01234"]), rows
    print(f"rank {FIRST_RANK} went on", flush=True)


def one_that_replaced_another_is_the_chief():
    """It knows which model was the best before it came."""
    folder = Path(sys.argv[2])
    generator = np.random.default_rng(0)
    x, y = (generator.normal(size=(12 * 4, width)).astype("float32") for width in (4, 1))
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.01), "mse")
    workers = []

    class Killed(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            workers.append(logs["workers"])
            time.sleep(0.05)
            if FIRST_RANK == 1 and epoch == 1 and len(workers) == 2:
                die()
            if FIRST_RANK == 0 and workers[-3:] == [1, 2, 2]:
                die()
            self.model.stop_training = easyscale.is_chief() and FIRST_RANK == 1

    mine = easyscale.shard(x, y)
    best = keras.callbacks.ModelCheckpoint(folder / "best.keras", save_best_only=True, mode="max")  # so the first epoch
    callbacks = [keras.callbacks.CSVLogger(str(folder / "log.csv")), easyscale.callbacks.Distribute(), best, Killed()]
    options = {"batch_size": easyscale.local_batch(12), "epochs": 10_000, "verbose": 2, "validation_data": mine}
    model.fit(*mine, callbacks=callbacks, **options)
    assert FIRST_RANK == 1 and easyscale.is_chief() and len(workers) > 2, workers
    lines = (folder / "log.csv").read_text().splitlines()
    column = lines[0].split(",").index("val_loss")
    losses = [float(line.split(",")[column]) for line in lines[1:]]
    assert abs(best.best - losses[0]) < 1e-6 and losses[0] == max(losses), (best.best, losses)
    saved = keras.saving.load_model(folder / "best.keras")
    assert abs(saved.evaluate(x, y, verbose=0) - best.best) < 1e-5
    print(f"rank {FIRST_RANK} went on", flush=True)


def the_chief_is_lost_as_another_joins():
    """Of three the second and the third are replaced, and the chief dies as the third's replacement joins.

    The second's has come before, so it is the next chief, and gives that one what it needs.
    """
    folder = Path(sys.argv[2])
    replaces = easyscale.communicator.get().membership.is_joining
    generator = np.random.default_rng(0)
    x, y = (generator.normal(size=(12 * 4, width)).astype("float32") for width in (4, 1))
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse")
    given, gifts = TrainingState.state, []

    def give(*args):
        gifts.append(args)
        if len(gifts) == 2:
            die()
        (folder / "joined").touch()
        return given(*args)

    if not replaces:
        TrainingState.state = give
    while replaces and FIRST_RANK == 2 and not (folder / "joined").exists():
        time.sleep(0.05)

    class Unlucky(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.epochs, self.seen = [], 0  # of this worker; of the training, which newcomers are told

        def on_epoch_begin(self, epoch, logs=None):
            self.epochs.append(epoch)

        def on_epoch_end(self, epoch, logs=None):
            self.seen += 1
            time.sleep(0.05)
            if not replaces and (FIRST_RANK, epoch) in ((2, 1), (1, 3)):
                die()
            has_company = {1, 2} <= {*easyscale.communicator.get().membership.initial_ranks}
            self.model.stop_training = easyscale.is_chief() and FIRST_RANK == 1 and has_company

    unlucky, distribute = Unlucky(), easyscale.callbacks.Distribute(sys.argv[3], update=sys.argv[4])
    mine, options = easyscale.shard(x, y), {"batch_size": easyscale.local_batch(12), "epochs": 10_000, "verbose": 2}
    model.fit(*mine, callbacks=[distribute, unlucky], **options)
    if FIRST_RANK > 0:  # whoever replaces the chief may have come too late
        assert easyscale.communicator.get().membership.initial_ranks[:2] == [1, 2]
        assert unlucky.epochs == list(range(unlucky.epochs[0], unlucky.seen)), (unlucky.epochs, unlucky.seen)
        weights = [weight.tolist() for weight in model.get_weights()]
        (folder / f"{FIRST_RANK}.json").write_text(json.dumps([weights, unlucky.seen]))
        print(f"rank {FIRST_RANK} went on", flush=True)


globals()[sys.argv[1]]()
