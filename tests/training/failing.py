"""Trainings that go wrong: `python failing.py CASE` under mpirun; rank 1 is the one that does it."""

import os
import signal
import sys
import threading
import time

import keras
import numpy as np

import easyscale

UNLUCKY = easyscale.rank() == 1


class Raising(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 1 and UNLUCKY:
            raise KeyError("in a callback")


class RaisingExchange(easyscale.exchange.Exchange):
    calls = 0

    def _reduce(self, buffer):
        self.calls += 1
        if self.calls == 3 and UNLUCKY:
            raise ZeroDivisionError("inside an exchange")
        easyscale.exchange.get("ring").reduce(buffer)

    def _gather(self, buffer):
        easyscale.exchange.get("ring").gather(buffer)


class RaisingLayer(keras.layers.Layer):
    def compute_output_shape(self, shape):
        return shape

    def call(self, x):
        if UNLUCKY:
            raise RuntimeError("this layer is called when the step is traced")
        return x


def fit(exchange="ring", layers=(), units=1, callbacks=(), epochs=1):
    model = keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(units), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x, y = easyscale.shard(np.ones((64, 3)), np.ones((64, 1)))
    callbacks = [easyscale.callbacks.Distribute(exchange), *callbacks]
    model.fit(x, y, batch_size=8, epochs=epochs, verbose=0, callbacks=callbacks)


class Killed(keras.callbacks.Callback):
    """Ends the process of one rank: a worker's in its third step, a server's, which makes none, 3 s after the begin."""

    def __init__(self, rank):
        super().__init__()
        self.is_unlucky = rank == easyscale.rank()
        if self.is_unlucky and rank >= easyscale.size():
            threading.Timer(3, self.kill).start()

    def kill(self):
        print(f"killed at {time.time()}", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.05)
        if batch == 2 and self.is_unlucky:
            self.kill()


def a_worker_is_killed():
    fit("parameter_server:async", callbacks=[Killed(1)], epochs=1000)


def a_server_is_killed():
    fit("parameter_server", callbacks=[Killed(2)], epochs=1000)


def a_server_is_killed_while_nobody_waits():
    fit("parameter_server:async", callbacks=[Killed(2)], epochs=1000)


def a_worker_is_lost_and_the_others_go_on():
    """In its second epoch; afterwards the workers that are left evaluate, and train again."""
    x, y = np.ones((72, 3)), np.ones((72, 1))
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(), "mse", metrics=["mae"])

    class LateKilled(Killed):
        def on_epoch_begin(self, epoch, logs=None):
            self.is_unlucky = epoch == 1 and easyscale.communicator.get().first_ranks[easyscale.rank()] == 1

    distribute = easyscale.callbacks.Distribute("parameter_server:async")
    options = {"batch_size": 4, "verbose": 2, "validation_data": easyscale.shard(x, y)}
    history = model.fit(*easyscale.shard(x, y), epochs=3, callbacks=[distribute, LateKilled(1)], **options).history
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
    name = easyscale.communicator.get().first_ranks[easyscale.rank()]
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
            if (name, self.epoch, batch) == (1, 1, 2):
                self.kill()

        def on_test_end(self, logs=None):
            if (name, self.epoch) == (2, 2):
                self.kill()

    distribute = easyscale.callbacks.Distribute(sys.argv[2], update=sys.argv[3])
    options = {"batch_size": 4, "verbose": 2, "validation_data": easyscale.shard(x, y)}
    history = model.fit(*easyscale.shard(x, y), epochs=5, callbacks=[distribute, Unlucky()], **options).history
    communicator = easyscale.communicator.get()
    assert history["workers"] == [4, 3, 3, 2, 2] or history["workers"] == [4, 3, 2, 2, 2], history
    assert communicator.first_ranks == [0, 3]
    assert int(model.optimizer.iterations) in (5 * 6 - 1, 5 * 6), int(model.optimizer.iterations)
    variables = [*model.get_weights(), *(keras.ops.convert_to_numpy(one) for one in model.optimizer.variables)]
    everyones = communicator.share([one.tolist() for one in variables])
    assert everyones[0] == everyones[1]
    assert communicator.share(history) == [history] * 2
    assert history["loss"][-1] < history["loss"][0]
    pause = max(later - sooner for sooner, later in zip(steps[6:12], steps[7:13], strict=False))
    print(f"rank {name} went on after {pause:.2f} s", flush=True)


def a_sharded_update_goes_on():
    """One of three is killed between the 20th step, after which its state was copied, and the 21st: nothing is lost."""
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(3 * 96, 4)).astype("float32"), generator.normal(size=(3 * 96, 1)).astype("float32")
    communicator, batch = easyscale.communicator.get(), 4
    name = communicator.rank
    everyones = communicator.share(easyscale.shard(np.arange(len(x))).tolist())
    start = [generator.normal(size=shape).astype("float32") for shape in ((4, 5), (5,), (5, 1), (1,))]

    def build():
        layers = [keras.Input((4,)), keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(1)]
        model = keras.Sequential(layers)
        model.set_weights(start)
        model.compile(keras.optimizers.Adam(0.01), "mse")
        return model

    class Unlucky(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if UNLUCKY and batch == 19:
                time.sleep(0.5)
                os.kill(os.getpid(), signal.SIGKILL)

    model = build()
    distribute = easyscale.callbacks.Distribute(sys.argv[2], update="sharded")
    options = {"batch_size": batch, "shuffle": False, "verbose": 0, "callbacks": [distribute, Unlucky()]}
    model.fit(*easyscale.shard(x, y), epochs=2, **options)
    if name == 0:
        stock = build()
        for step in range(48):
            place, workers = step % 24 * batch, (0, 1, 2) if step < 20 else (0, 2)
            rows = np.concatenate([everyones[worker][place : place + batch] for worker in workers])
            stock.train_on_batch(x[rows], y[rows])
        ours, theirs = ([*one.weights, *one.optimizer.variables] for one in (model, stock))
        values = ([keras.ops.convert_to_numpy(one) for one in both] for both in zip(ours, theirs, strict=True))
        differences = [np.abs(mine - stocks).max() for mine, stocks in values]
        assert max(differences) <= 1e-5, differences
    print(f"rank {name} went on", flush=True)


def checkpoints_stay_right():
    """With a checkpoint before every second step, which is right: one worker is killed in a step, one as it writes."""
    x, y = np.arange(288).reshape(96, 3) / 288, np.ones((96, 1))
    folder, resumes = sys.argv[2], len(sys.argv) > 3
    communicator = easyscale.communicator.get()
    name = communicator.rank
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse")
    seen = []

    class Unlucky(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(batch)
            if not resumes and name == 1 and len(seen) == 9:
                os.kill(os.getpid(), signal.SIGKILL)

    distribute = easyscale.callbacks.Distribute(checkpoint=folder, every=2, keep=100)
    x, y = easyscale.shard(x, y)
    if not resumes and name == 2:
        from easyscale.callbacks.checkpointing import Checkpointing

        save = Checkpointing.save

        def die(self, steps, ended=False):
            if communicator.first_ranks[communicator.rank] == 2 and steps >= 14:
                os.kill(os.getpid(), signal.SIGKILL)
            save(self, steps, ended)

        Checkpointing.save = die
    model.fit(
        x, y, batch_size=4, epochs=5 if resumes else 4, verbose=2, callbacks=[distribute, Unlucky()], shuffle=False
    )
    communicator.share(None)  # the chief comes here when the last one is written
    found, wrong = easyscale.checkpoints.Checkpoints(folder).read()
    assert not wrong
    assert found.about["ended"]
    assert found.about["steps"] == 4 * 6 + 12 * resumes, found.about["steps"]
    for number, weight in enumerate(model.weights):
        np.testing.assert_array_equal(found.arrays[f"weight/{number}"], keras.ops.convert_to_numpy(weight))
    assert len(found.about["data"]) == 2
    assert len(seen) == (12 if resumes else 4 * 6), seen
    print(f"rank {name} went on: {found.about['data']} {len(seen)}", flush=True)


def exception_where_nobody_waits():
    fit("parameter_server:async", callbacks=[Raising()], epochs=1000)


def exception_in_a_callback():
    fit(callbacks=[Raising()])


def exception_inside_an_exchange():
    fit(RaisingExchange())


def exception_while_tracing():
    fit(layers=[RaisingLayer()])


def different_exchanges():
    os.environ["EASYSCALE_EXCHANGE"] = "tree" if UNLUCKY else "ring"
    fit(None)


def different_models():
    fit(units=3 if UNLUCKY else 2)


def different_epochs():
    fit(epochs=3 if UNLUCKY else 2)


def different_gradients():
    optimizer = easyscale.DistributedOptimizer("sgd", "ring")
    variables = [keras.Variable(np.zeros(shape, "float32"), name="v") for shape in [(2, 2), (3,)]]
    gradients = [keras.ops.ones((2, 2)), None if UNLUCKY else keras.ops.ones((3,))]
    optimizer.apply(gradients, variables)


def different_gradients_and_fit_recovers_the_error():
    try:
        fit(RaisingExchange())
    except ZeroDivisionError:
        print("caught by its own name", flush=True)
        raise


def data_that_one_rank_has_none_of():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")

    def batches():
        for _ in range(0 if UNLUCKY else 4):
            yield np.ones((8, 3)), np.ones((8, 1))

    model.fit(batches(), verbose=0, callbacks=[easyscale.callbacks.Distribute()])


def no_data_and_an_optimizer_that_the_first_step_builds():
    import tensorflow as tf

    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    count = 0 if UNLUCKY else 32
    data = tf.data.Dataset.from_tensor_slices((np.ones((count, 3)), np.ones((count, 1)))).batch(8)
    model.fit(data, verbose=0, callbacks=[easyscale.callbacks.Distribute("ring")])


def a_model_that_is_not_built_without_the_callback():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(easyscale.DistributedOptimizer("sgd"), "mse")
    model.fit(np.ones((64, 3)), np.ones((64, 1)), verbose=0)


def validation_on_the_chief_alone():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x, y = easyscale.shard(np.ones((64, 3)), np.ones((64, 1)))
    validation = (x, y) if easyscale.is_chief() else None
    distribute = easyscale.callbacks.Distribute()
    model.fit(x, y, batch_size=8, epochs=2, verbose=0, validation_data=validation, callbacks=[distribute])


globals()[sys.argv[1]]()
