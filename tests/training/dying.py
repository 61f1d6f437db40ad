"""How ranks of an elastic training die, for `losing.py` and `losing_chiefs.py`."""

import os
import signal
import time

import keras

import easyscale

FIRST_RANK = easyscale.rank()


def die():
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)


class KilledAfter(keras.callbacks.Callback):
    """Ends a rank by SIGKILL after a step of an epoch: while the others wait for it to decide what comes next."""

    def __init__(self, rank, epoch, step):
        super().__init__()
        self.when = (rank, epoch, step)

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if (FIRST_RANK, self.epoch, batch) == self.when:
            die()


class KilledIn(keras.layers.Layer):
    """Ends a rank by SIGKILL in a step of the training."""

    def __init__(self, rank, step):
        super().__init__()
        self.rank, self.step, self.steps = rank, step, 0

    def call(self, x, training=False):
        if training and self.rank == FIRST_RANK:
            _in_each_step(self.count)
        return x

    def count(self):
        self.steps += 1
        if self.steps > self.step:
            die()


def _in_each_step(count):
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        tf.numpy_function(count, [], [])
    elif keras.backend.backend() == "jax":
        import jax

        jax.debug.callback(count)
    else:
        count()


class Through(keras.layers.Layer):
    def __init__(self, **options):
        super().__init__()

    def call(self, x):
        return x
