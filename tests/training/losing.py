"""Elastic trainings that lose workers: `python losing.py CASE ...` under `easyscale launch --elastic`."""

import os
import signal
import sys
import time
from pathlib import Path

import keras
import numpy as np
from dying import FIRST_RANK, KilledAfter, KilledIn

import easyscale


def a_worker_is_lost_and_the_others_go_on():
    """In its second epoch; afterwards the workers that are left evaluate, and train again."""
    x, y = np.ones((72, 3)), np.ones((72, 1))
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(), "mse", metrics=["mae"])

    class Killed(keras.callbacks.Callback):
        epoch = 0

        def on_epoch_begin(self, epoch, logs=None):
            self.epoch = epoch

        def on_train_batch_end(self, batch, logs=None):
            time.sleep(0.05)
            if (FIRST_RANK, self.epoch, batch) == (1, 1, 2):
                os.kill(os.getpid(), signal.SIGKILL)

    distribute = easyscale.callbacks.Distribute("parameter_server:async")
    options = {"batch_size": 4, "verbose": 2, "validation_data": easyscale.shard(x, y)}
    history = model.fit(*easyscale.shard(x, y), epochs=3, callbacks=[distribute, Killed()], **options).history
    assert history["workers"] == [3, 2, 2], history
    assert [round(sum(one.values())) for one in history["staleness_histogram"]] == [18, 15, 12], history
    assert easyscale.size() == 2
    assert easyscale.rank() == easyscale.communicator.get().rank < 3
    model.evaluate(*easyscale.shard(x, y), verbose=0, callbacks=[distribute])
    model.fit(*easyscale.shard(x, y), batch_size=4, verbose=0, callbacks=[distribute])
    assert int(model.optimizer.iterations) == 18 + 15 + 12 + 18
    print(f"rank {easyscale.rank()} went on", flush=True)


def workers_that_wait_for_each_other_go_on():
    """Two of four are killed, in the second epoch and in the validation's metrics of the third."""
    x, y = np.arange(288).reshape(96, 3) / 288, np.ones((96, 1))
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    steps = []

    class Unlucky(keras.callbacks.Callback):
        epoch = 0

        def kill(self):
            print(f"killed at {time.time()}", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

        def on_epoch_begin(self, epoch, logs=None):
            self.epoch = epoch

        def on_train_batch_end(self, batch, logs=None):
            steps.append(time.time())
            if (FIRST_RANK, self.epoch, batch) == (1, 1, 2):
                self.kill()

        def on_test_end(self, logs=None):
            if (FIRST_RANK, self.epoch) == (2, 2):
                self.kill()

    distribute = easyscale.callbacks.Distribute(sys.argv[2], update=sys.argv[3])
    options = {"batch_size": 4, "verbose": 2, "validation_data": easyscale.shard(x, y)}
    history = model.fit(*easyscale.shard(x, y), epochs=5, callbacks=[distribute, Unlucky()], **options).history
    communicator = easyscale.communicator.get()
    assert history["workers"] == [4, 3, 3, 2, 2] or history["workers"] == [4, 3, 2, 2, 2], history
    assert communicator.membership.initial_ranks == [0, 3]
    assert int(model.optimizer.iterations) in (5 * 6 - 1, 5 * 6), int(model.optimizer.iterations)
    variables = [*model.get_weights(), *(keras.ops.convert_to_numpy(one) for one in model.optimizer.variables)]
    everyones = communicator.all_gather_object([one.tolist() for one in variables])
    assert everyones[0] == everyones[1]
    assert communicator.all_gather_object(history) == [history] * 2
    assert history["loss"][-1] < history["loss"][0]
    pause = max(later - sooner for sooner, later in zip(steps[6:12], steps[7:13], strict=False))
    print(f"rank {FIRST_RANK} went on after {pause:.2f} s", flush=True)


def a_sharded_update_goes_on():
    """One of three is killed between the 20th step, after which its state was copied, and the 21st: nothing is lost."""
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(3 * 96, 4)).astype("float32"), generator.normal(size=(3 * 96, 1)).astype("float32")
    communicator, batch = easyscale.communicator.get(), 4
    everyones = communicator.all_gather_object(easyscale.shard(np.arange(len(x))).tolist())
    start = [generator.normal(size=shape).astype("float32") for shape in ((4, 5), (5,), (5, 1), (1,))]

    def build():
        layers = [keras.Input((4,)), keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(1)]
        model = keras.Sequential(layers)
        model.set_weights(start)
        model.compile(keras.optimizers.Adam(0.01), "mse")
        return model

    class Unlucky(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if FIRST_RANK == 1 and batch == 19:
                time.sleep(0.5)
                os.kill(os.getpid(), signal.SIGKILL)

    model = build()
    distribute = easyscale.callbacks.Distribute(sys.argv[2], update="sharded")
    options = {"batch_size": batch, "shuffle": False, "verbose": 0, "callbacks": [distribute, Unlucky()]}
    model.fit(*easyscale.shard(x, y), epochs=2, **options)
    if FIRST_RANK == 0:
        stock = build()
        for step in range(48):
            place, workers = step % 24 * batch, (0, 1, 2) if step < 20 else (0, 2)
            rows = np.concatenate([everyones[worker][place : place + batch] for worker in workers])
            stock.train_on_batch(x[rows], y[rows])
        ours, theirs = ([*one.weights, *one.optimizer.variables] for one in (model, stock))
        values = ([keras.ops.convert_to_numpy(one) for one in both] for both in zip(ours, theirs, strict=True))
        differences = [np.abs(mine - stocks).max() for mine, stocks in values]
        assert max(differences) <= 1e-5, differences
    print(f"rank {FIRST_RANK} went on", flush=True)


def checkpoints_stay_right():
    """With a checkpoint before every second step, which is right: one worker is killed in a step, one as it writes."""
    x, y = np.arange(288).reshape(96, 3) / 288, np.ones((96, 1))
    folder, resumes = sys.argv[2], len(sys.argv) > 3
    communicator = easyscale.communicator.get()
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse")
    seen = []

    class Unlucky(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(batch)
            if not resumes and FIRST_RANK == 1 and len(seen) == 9:
                os.kill(os.getpid(), signal.SIGKILL)

    distribute = easyscale.callbacks.Distribute(checkpoint=folder, every=2, keep=100)
    x, y = easyscale.shard(x, y)
    if not resumes and FIRST_RANK == 2:
        from easyscale.training.checkpointing import Checkpointing

        save = Checkpointing.save

        def die(self, steps, **kinds):
            if communicator.membership.initial_ranks[communicator.rank] == 2 and steps >= 14:
                os.kill(os.getpid(), signal.SIGKILL)
            save(self, steps, **kinds)

        Checkpointing.save = die
    model.fit(
        x, y, batch_size=4, epochs=5 if resumes else 4, verbose=2, callbacks=[distribute, Unlucky()], shuffle=False
    )
    communicator.all_gather_object(None)  # the chief comes here when the last one is written
    found, wrong = easyscale.checkpoint.folder.Checkpoints(folder).read()
    assert not wrong
    assert found.about["ended"]
    assert found.about["steps"] == 4 * 6 + 12 * resumes, found.about["steps"]
    for number, weight in enumerate(model.weights):
        np.testing.assert_array_equal(found.arrays[f"weight/{number}"], keras.ops.convert_to_numpy(weight))
    assert len(found.about["data"]) == 2
    assert len(seen) == (12 if resumes else 4 * 6), seen
    print(f"rank {FIRST_RANK} went on: {found.about['data']} {len(seen)}", flush=True)


def the_data_are_divided_anew():
    """Two of four are killed. But for the batch under way it is what one process does with all data."""
    exchange, update, kind = sys.argv[2:]
    generator = np.random.default_rng(0)
    samples, batch, steps, epochs, lost = 12 * 14 + 7, 12, 15, 3, 15 + 9
    x, y = (generator.normal(size=(samples, width)).astype("float32") for width in (4, 1))
    start = [generator.normal(size=shape).astype("float32") for shape in ((4, 5), (5,), (5, 1), (1,))]
    weights = None if kind == "arrays" else 1 + y[:, 0] ** 2

    def build():
        inputs = keras.Input((4,), name="x")
        outputs = keras.layers.Dense(5, activation="tanh")(KilledIn(3, lost)(inputs))
        model = keras.Model(inputs if kind == "arrays" else {"x": inputs}, keras.layers.Dense(1)(outputs))
        model.set_weights(start)
        # Of a lost part of the state there is a copy, which is older.
        model.compile(keras.optimizers.Adam(0.01) if update == "replicated" else keras.optimizers.SGD(0.05), "mse")
        return model

    def structure(x):
        return x if kind == "arrays" else {"x": x}

    model = build()
    x_mine, y_mine = easyscale.shard(structure(x), y)
    distribute = easyscale.callbacks.Distribute(exchange, update=update)
    history = model.fit(
        x_mine,
        y_mine,
        easyscale.local_batch(batch),
        epochs,
        shuffle=False,
        verbose=2,
        sample_weight=None if weights is None else easyscale.shard(weights),
        validation_data=(x_mine, y_mine),
        callbacks=[distribute, KilledAfter(rank=1, epoch=0, step=3)],
    ).history
    assert history["workers"] == [3, 2, 2], history
    if FIRST_RANK == 0:
        stock, losses = build(), []
        for step in range(steps * epochs):
            rows = slice(step % steps * batch, (step % steps + 1) * batch)
            if step != lost:
                weighted = None if weights is None else weights[rows]
                stock.train_on_batch(structure(x[rows]), y[rows], sample_weight=weighted)
            if step % steps == steps - 1:
                losses.append(stock.evaluate(structure(x), y, verbose=0))
        ours, theirs = ([*one.weights, *one.optimizer.variables] for one in (model, stock))
        values = ([keras.ops.convert_to_numpy(one) for one in both] for both in zip(ours, theirs, strict=True))
        differences = [np.abs(mine - stocks).max() for mine, stocks in values]
        assert max(differences) <= 1e-5, differences
        np.testing.assert_allclose(history["val_loss"], losses, rtol=1e-5)
    model.fit(x_mine, y_mine, batch_size=3, verbose=0, callbacks=[distribute])  # with parts of the first division
    assert int(model.optimizer.iterations) == steps * epochs - 1 + steps
    model.fit(x_mine, y_mine, easyscale.local_batch(batch), verbose=0, callbacks=[distribute])  # of the two left
    model.fit(*easyscale.shard(structure(x), y), batch_size=3, verbose=0, callbacks=[distribute])  # of the four
    assert int(model.optimizer.iterations) == steps * epochs - 1 + 3 * steps
    print(f"rank {FIRST_RANK} went on", flush=True)


def one_is_left():
    """Of three workers, of which only the chief has a part in the last batch. It ends by an exception of the script."""
    x, y = (np.random.default_rng(0).normal(size=(12 * 2 + 1, width)).astype("float32") for width in (4, 1))
    start = [np.full((4, 1), 0.5, "float32"), np.zeros(1, "float32")]

    def build():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.set_weights(start)
        model.compile(keras.optimizers.Adam(0.05), "mse")
        return model

    model, distribute = build(), easyscale.callbacks.Distribute()
    mine, batch = easyscale.shard(x, y), easyscale.local_batch(12)
    before = model.evaluate(*mine, verbose=0, callbacks=[distribute])
    killed = [KilledAfter(rank=0, epoch=1, step=0), KilledAfter(rank=1, epoch=2, step=1)]
    options = {"shuffle": False, "verbose": 2, "batch_size": batch}
    history = model.fit(*mine, epochs=4, validation_data=mine, callbacks=[distribute, *killed], **options).history
    assert history["workers"] == [3, 2, 1, 1], history
    stock = build()
    np.testing.assert_allclose(before, stock.evaluate(x, y, verbose=0), rtol=1e-5)
    expected = stock.fit(x, y, batch_size=12, epochs=4, validation_data=(x, y), shuffle=False, verbose=0).history
    np.testing.assert_allclose(history["val_loss"], expected["val_loss"], rtol=1e-4)
    for ours, theirs in zip(model.get_weights(), stock.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    again = model.fit(*easyscale.shard(x, y), callbacks=[distribute], **{**options, "batch_size": 12}).history
    assert again["workers"] == [1], again
    print(f"rank {FIRST_RANK} went on", flush=True)
    raise ArithmeticError("after all")


def every_sample_is_trained_on_again():
    """Each later epoch has every sample once: with these gradients, weights then move by what the data's mean says."""
    kind, is_replaced = sys.argv[2], sys.argv[3] == "replaced"
    x, y = np.random.default_rng(0).normal(size=(12 * 10, 4)).astype("float32"), np.zeros((12 * 10, 1))
    model, moved, workers = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]), {}, []
    model.compile(keras.optimizers.SGD(0.1), lambda wanted, found: found)

    class Weights(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.before = self.model.get_weights()[0][:, 0]

        def on_epoch_end(self, epoch, logs=None):
            moved[epoch] = self.before - self.model.get_weights()[0][:, 0]
            workers.append(logs["workers"])
            if epoch > 3 and workers[-2:] == [3, 3] if is_replaced else epoch == 4:
                self.model.stop_training = True
            time.sleep(0.1)

    class Batches(keras.utils.PyDataset):
        @property
        def num_batches(self):
            return 10

        def __getitem__(self, index):
            return x[12 * index : 12 * index + 12], y[12 * index : 12 * index + 12]

    distribute, killed = easyscale.callbacks.Distribute(), KilledAfter(rank=2, epoch=1, step=3)
    options = {"epochs": 10_000, "verbose": 2, "callbacks": [distribute, killed, Weights()]}
    if kind == "arrays":
        mine = easyscale.shard(x, y)
        model.fit(*mine, batch_size=easyscale.local_batch(12), **options)
    elif kind == "PyDataset":
        model.fit(easyscale.shard(Batches()), **options)
    else:
        import tensorflow as tf

        dataset = (
            tf.data.Dataset.from_tensor_slices((x, y)).shuffle(120, seed=1, reshuffle_each_iteration=False).batch(12)
        )
        model.fit(easyscale.shard(dataset).prefetch(1), **options)
    for epoch in {*moved} - {1}:
        np.testing.assert_allclose(moved[epoch], 0.1 * 10 * x.mean(axis=0), rtol=1e-3, atol=1e-5)
    print(f"rank {FIRST_RANK} went on after {moved.keys()}", flush=True)


def workers_come_back_one_by_one():
    """Of three two are killed. What the last has traced alone is of no use when it has company again."""
    folder = Path(sys.argv[2])
    replaces = easyscale.communicator.get().membership.is_joining
    x, y = (np.random.default_rng(0).normal(size=(12 * 4, width)).astype("float32") for width in (4, 1))
    model, workers = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]), []
    model.compile(keras.optimizers.Adam(0.01), "mse")
    while replaces and FIRST_RANK == 2 and not (folder / "joined").exists():
        time.sleep(0.05)

    class Watched(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            time.sleep(0.05)
            workers.append(logs["workers"])
            kernel, bias = self.model.get_weights()
            np.testing.assert_allclose(logs["val_loss"], np.square(x @ kernel + bias - y).mean(), rtol=1e-4)
            if not replaces and FIRST_RANK > 0 and epoch == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            if workers[-2:] == [2, 2] and 1 in workers:
                (folder / "joined").touch()
            self.model.stop_training = easyscale.is_chief() and workers[-2:] == [3, 3] and 1 in workers

    mine, distribute = easyscale.shard(x, y), easyscale.callbacks.Distribute(check_every=1)
    options = {"batch_size": easyscale.local_batch(12), "epochs": 10_000, "verbose": 2, "validation_data": mine}
    model.fit(*mine, callbacks=[distribute, Watched()], **options)
    print(f"rank {FIRST_RANK} went on", flush=True)


globals()[sys.argv[1]]()
