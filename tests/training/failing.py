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


def _fit_again(new):
    fits = []

    def try_fit():
        model = fits[0] if fits and not new else keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        if model not in fits:
            model.compile("sgd", "mse")
        fits.append(model)
        x, y = easyscale.shard(np.ones((64, 3)), np.ones((64, 1)))
        raising = [Raising()] if len(fits) == 1 else []
        callbacks = [easyscale.callbacks.Distribute("ring"), *raising]
        model.fit(x, y, batch_size=8, epochs=2, verbose=0, callbacks=callbacks)

    try:
        try_fit()
    except KeyError:
        try_fit()


def a_fit_behind_one_that_failed():
    _fit_again(new=False)


def a_fit_of_another_model_behind_one_that_failed():
    _fit_again(new=True)


def a_worker_is_killed():
    fit("parameter_server:async", callbacks=[Killed(1)], epochs=1000)


def a_server_is_killed():
    fit("parameter_server", callbacks=[Killed(2)], epochs=1000)


def a_server_is_killed_while_nobody_waits():
    fit("parameter_server:async", callbacks=[Killed(2)], epochs=1000)


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
