"""What is sent: counted, because counts do not wobble."""

from unittest import mock

import keras
import numpy as np
import tensorflow as tf
from covering import full
from models import classify, conv_net, digits

import easyscale
from easyscale.backend.tensorflow.host_calls import HostCalls
from easyscale.callbacks import Distribute
from easyscale.exchange import Exchange

comm = easyscale.communicator.get()
STEPS = 12


class Counted(Exchange):
    """Counts the vectors that it sums."""

    def __init__(self):
        self.lengths, self.gathered = [], []
        self._ring = easyscale.exchange.get("ring")

    def _reduce(self, buffer):
        self.lengths.append(buffer.size)
        self._ring.reduce(buffer)

    def _gather(self, buffer):
        self.gathered.append(buffer.size)
        self._ring.gather(buffer)


def _lengths(model, x=None, y=None, update=None):
    counted = Counted()
    if x is None:
        x, y = easyscale.shard(*digits(8 * comm.size * STEPS))
    model.fit(x, y, batch_size=8, verbose=0, callbacks=[Distribute(counted, update=update)])
    assert counted.lengths == counted.gathered
    return counted.lengths


@full
def check_one_exchange_a_step():
    for update in (None, "replicated"):
        lengths = _lengths(classify(conv_net(), "sgd"), update=update)
        assert len(lengths) == STEPS and len(set(lengths)) == 1


@full
def check_a_step_calls_python_once_and_once_more_where_weights_come_back():
    made, called = HostCalls.__call__, []

    def counted(calls, function, inputs, results, stay=0):
        return made(calls, lambda *arrays: called.append(1) or function(*arrays), inputs, results, stay)

    with mock.patch.object(HostCalls, "__call__", counted):
        for update, times in (("replicated", 1), ("sharded", 2)):
            called.clear()
            _lengths(classify(conv_net(), "adam"), update=update)
            assert len(called) == times * STEPS


@full
def check_each_rank_has_its_part_of_the_optimizers_state():
    sizes = []

    class Size(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            states = self.model.optimizer.updates.chosen.variables
            sizes.append(sum(int(np.prod(one.shape)) for one in states))

    model = classify(conv_net(), "adam")
    x, y = easyscale.shard(*digits(8 * comm.size * 2))
    model.fit(x, y, batch_size=8, verbose=0, callbacks=[Size(), Distribute("ring")])
    whole = sum(int(np.prod(one.shape)) for one in model.optimizer.variables)  # after fit()
    assert whole == 2 + 2 * model.count_params()
    parts = [size for size, _ in comm.all_gather_object([sizes[0], sizes[-1]])]
    assert sum(parts) == whole + 2 * (comm.size - 1)
    assert max(parts) < whole / comm.size + 100


@full
def check_accumulation_over_k_steps_exchanges_once_in_k_steps():
    for k in (2, 3, 4):
        optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=k)
        assert len(_lengths(classify(conv_net(), optimizer))) == STEPS // k


@full
def check_moving_statistics_travel_in_the_same_vector():
    layers = [keras.Input((8, 8, 1)), keras.layers.Conv2D(4, 3), keras.layers.BatchNormalization()]
    model = classify(keras.Sequential([*layers, keras.layers.Flatten(), keras.layers.Dense(10)]), "sgd")
    lengths = _lengths(model, update="replicated")
    assert len(lengths) == STEPS and len(set(lengths)) == 1
    assert sum(int(np.prod(one.shape)) for one in model.weights) <= lengths[0]


def _sent_for_rows(words, rows, optimizer):
    """Bytes that a rank sends in a step for an embedding of `words` rows of 16 floats, of which it touches `rows`."""
    optimizer = easyscale.DistributedOptimizer(optimizer, "ring")
    table = keras.Variable(np.zeros((words, 16), "float32"))
    indices = (np.arange(rows) * comm.size + comm.rank) % words
    gradient = tf.IndexedSlices(tf.ones((rows, 16)), tf.constant(indices), tf.constant([words, 16]))
    optimizer.apply([gradient], [table])  # starts equal, too
    before = comm.sent.bytes
    optimizer.apply([gradient], [table])
    touched = np.flatnonzero(table.numpy()[:, 0])
    assert touched.size == min(rows * comm.size, words)
    return comm.sent.bytes - before


def check_sparse_gradients_travel_as_rows_and_indices_where_that_is_less():
    few = _sent_for_rows(10_000, 20, keras.optimizers.SGD(0.1))
    assert few == (comm.size - 1) * 20 * (16 * 4 + 8)
    dense = 2 * (comm.size - 1) * 600 * 16 * 4 // comm.size
    assert abs(_sent_for_rows(600, 600, keras.optimizers.SGD(0.1)) - dense) < 64 * comm.size
    assert _sent_for_rows(600, 600, keras.optimizers.Adam(0.1)) == (comm.size - 1) * 600 * (16 * 4 + 8)
