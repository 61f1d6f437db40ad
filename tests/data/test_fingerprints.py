"""Fingerprints of the data that `shard` is given: equal for equal data, and an error for none."""

import numpy as np
import scipy.sparse
import tensorflow as tf

from easyscale.data import fingerprints

X = np.arange(40.0, dtype="float32").reshape(20, 2)


def taken(*data):
    fingerprints.noted()
    fingerprints.note(data)
    return fingerprints.noted()


def test_the_same_data_has_the_same_fingerprint():
    assert taken(X, {"a": X}) == taken(X.copy(), {"a": X.copy()})
    assert taken(list("abcd")) == taken(list("abcd"))


def test_another_order_or_split_has_another():
    assert len({*map(tuple, map(taken, (X, X[::-1], X[:-1])))}) == 3


def test_a_shuffle_without_a_seed_equals_no_other():
    tensors = tf.data.Dataset.from_tensor_slices(X)
    assert taken(tensors.shuffle(9, seed=1).batch(4)) == taken(tensors.shuffle(9, seed=1).batch(4))
    assert taken(tensors.shuffle(9)) != taken(tensors.shuffle(9))
    assert taken(tensors.shuffle(9, seed=1)) != taken(tensors.shuffle(9, seed=2))


def test_data_of_every_kind_has_one():
    ragged = tf.ragged.constant([[1, 2], [3], [4, 5, 6]])
    for data in (ragged, tf.data.Dataset.from_tensor_slices(ragged), scipy.sparse.csr_matrix(X), tf.constant(X)):
        assert taken(data) == taken(data)
