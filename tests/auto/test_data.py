"""What a worker gets of data of each kind, on threads."""

import keras
import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf

from easyscale import called
from easyscale.auto import data
from easyscale.auto.failing import failing_together
from easyscale.auto.model import _listed
from easyscale.auto.predicting import deal
from easyscale.data import division
from easyscale.errors import PeerError

X, Y = np.arange(10.0)[:, None], np.arange(10)


class Series(np.ndarray):
    """Stands in for a pandas Series, of which Keras makes a column."""

    def __new__(cls, values):
        return np.asarray(values).view(cls)

    @property
    def iloc(self):
        return self

    def to_numpy(self):
        return np.asarray(self)


def test_arrays_are_divided_sample_by_sample(run_ranks):
    divided = run_ranks(2, lambda comm: data.divide({"a": X}, Y, None, comm))
    assert [part.about for part in divided] == ["10 samples"] * 2
    np.testing.assert_array_equal(divided[1].x["a"], X[1::2])
    np.testing.assert_array_equal(divided[1].y, Y[1::2])
    assert all(part.is_part and part.are_arrays for part in divided)
    assert called.names == set(), "it is not the script that has called `shard`"


def test_what_differs_between_workers_is_seen(run_ranks):
    parts = run_ranks(2, lambda comm: data.divide(X + comm.rank, Y, None, comm))
    assert parts[0].about.startswith("10 samples that each worker has drawn for itself")
    np.testing.assert_array_equal(parts[1].x, X[1::2] + 1)
    words = np.array(["a", "b", "c"], dtype=object)
    assert run_ranks(2, lambda comm: data.divide(words, None, None, comm).about) == ["3 samples"] * 2


def test_a_generator_is_divided_batch_by_batch_as_its_rows_are_dealt(run_ranks):
    def on_rank(comm):
        batches = ((X[low:high], Y[low:high]) for low, high in [(0, 3), (3, 4), (4, 10)])
        return [y.tolist() for _, y in data.divide(batches, None, None, comm).x]

    assert run_ranks(2, on_rank) == [[[0, 2], [4, 6, 8]], [[1], [3], [5, 7, 9]]]
    assert list(data.divide(iter([]), None, None, run_ranks(1, lambda comm: comm)[0]).x) == []


class Loader:
    """What can be gone through, and has no rows."""

    def __iter__(self):
        return iter([(X, Y)])

    def __len__(self):
        return 1


def test_what_cannot_be_divided_stays_whole_and_that_is_said(run_ranks):
    loader = Loader()
    (divided,) = run_ranks(1, lambda comm: data.divide(loader, None, None, comm))
    assert divided.x is loader and not divided.is_part
    assert divided.about == "a Loader: each worker draws its own batches"


def test_a_dataset_of_what_has_no_rows_stays_whole(run_ranks):
    sparse = tf.data.Dataset.from_tensors(tf.sparse.from_dense(np.eye(4))).repeat(2)
    for divided in run_ranks(2, lambda comm: data.divide(sparse, None, None, comm)):
        assert divided.x is sparse and not divided.is_part
        assert divided.about == "a tf.data.Dataset of SparseTensor: each worker trains on all of it"


def test_a_batch_that_workers_cannot_divide_evenly_is_divided_sample_by_sample(run_ranks):
    def on_rank(comm):
        divided, size = data.divide_trained(X, Y, None, 5, None, False, comm)
        return size, [divided.x[index][1].tolist() for index in range(divided.x.num_batches)]

    assert run_ranks(2, on_rank) == [(None, [[0, 2, 4], [6, 8]]), (None, [[1, 3], [5, 7, 9]])]


def test_shuffled_batches_are_the_same_on_all_workers_and_others_in_each_pass():
    batches = data._Batches(X, Y, None, 3, shuffle=True)
    first, second = (np.concatenate([batches[index][1] for index in range(4)]) for _ in range(2))
    assert sorted(first) == sorted(second) == Y.tolist()
    assert first.tolist() != second.tolist()
    batches = data._Batches(X, Y, None, 3, shuffle="batch")
    assert sorted(batches[0][1].tolist()) in ([0, 1, 2], [3, 4, 5], [6, 7, 8]) and batches[3][1].tolist() == [9]


def test_batches_are_what_keras_makes_of_arrays():
    words = data._Batches(np.array(["a", "b", "c"], dtype=object), Y[:3], None, 2)[0][0]
    assert tf.is_tensor(words) and words.numpy().tolist() == [b"a", b"b"]
    numbers = data._Batches({"a": X}, Y, None, 2)[0][0]["a"]
    assert numbers.dtype == "float32"
    assert data._Batches(X, Series(Y), None, 3)[0][1].shape == (3, 1)
    sparse = data._Batches(scipy.sparse.csr_matrix(X), Y, None, 3)
    np.testing.assert_array_equal(sparse[1][0], X[3:6])
    listed = data._Batches([X, [X]], Y, None, 2)[0][0]
    assert isinstance(listed, tuple) and isinstance(listed[1], tuple)


def test_batches_smaller_than_the_workers_are_refused_in_one_line(run_ranks):
    rule = "^every worker must get at least one sample of each batch. Received: 1 sample for 2 workers. Start fewer"
    singles = tf.data.Dataset.from_tensor_slices((X, Y)).batch(1)
    generated = tf.data.Dataset.from_generator(lambda: iter([[1.0]] * 4), output_signature=tf.TensorSpec((None,)))
    rows = [[0.0, 1.0], [2.0], [3.0, 4.0]]
    in_the_middle = tf.data.Dataset.from_generator(lambda: iter(rows), output_signature=tf.TensorSpec((None,)))
    for given in (singles, singles.filter(lambda *batch: True), generated, in_the_middle):

        def on_rank(comm, given=given):
            part = data.divide_trained(given, None, None, None, None, False, comm)[0].x
            rows = len(list(part))  # an evaluation goes through them
            for small in division.small_batches_of(part.prefetch(1)):
                small.check()
            return rows

        with pytest.raises(ValueError, match=rule):
            run_ranks(2, on_rank)

    def of_generator(comm, trains=True):
        batches = ((X[i : i + 1],) for i in range(10))
        with division.explained():
            return len(list(data.divide(batches, None, None, comm, trains).x))

    with pytest.raises(ValueError, match=rule):
        run_ranks(2, of_generator)
    assert run_ranks(2, lambda comm: of_generator(comm, trains=False)) == [5, 5]
    with pytest.raises(ValueError, match=rule):
        run_ranks(2, lambda comm: data.divide_trained(X, Y, None, 1, None, False, comm))


def test_one_short_batch_at_the_end_of_a_pass_is_none_of_these(run_ranks):
    rows = tf.data.Dataset.range(5)
    for dataset in (rows.batch(2), rows.ragged_batch(2).map(lambda batch: batch), rows.batch(2).repeat(2)):

        def on_rank(comm, given=dataset):
            part = data.divide_trained(given, None, None, None, None, False, comm)[0].x
            values = [int(value) for batch in part for value in batch]
            for small in division.small_batches_of(part):
                small.check()
            return values

        even, odd = run_ranks(2, on_rank)
        assert (even[:3], odd[:2]) == ([0, 2, 4], [1, 3])


def test_a_list_of_callbacks_that_has_its_model_is_refused():
    callback = keras.callbacks.TerminateOnNaN()
    assert _listed(None) == [] and _listed(callback) == _listed([callback]) == [callback]
    with pytest.raises(
        ValueError, match="^`callbacks` must be a list of callbacks with --auto. Received: a CallbackList"
    ):
        _listed(keras.callbacks.CallbackList([callback]))


def test_batches_to_predict_have_the_shapes_that_the_dataset_states(run_ranks):
    lengths = [[7, 3], [7, 2], [7, 1], [7, 4], [5, 4]]  # a rank's first two batches are of one length, its third is not
    rows = [list(range(length)) for batch in lengths for length in batch]
    signature = tf.TensorSpec((None,), tf.int32)
    padded = tf.data.Dataset.from_generator(lambda: iter(rows), output_signature=signature).padded_batch(2)
    dealt = run_ranks(2, lambda comm: deal(padded, None, comm))
    assert [part.x.element_spec for part in dealt] == [padded.element_spec] * 2
    assert [[batch.shape.as_list() for batch in part.x] for part in dealt] == [[[2, 7], [2, 7], [2, 5]], [[2, 7]] * 2]
    assert [len(list(part.x)) for part in dealt] == [3, 2], "a second pass has all of them again"


@pytest.mark.parametrize("kind", ["ragged", "sparse", "dict", "pair"])
def test_batches_to_predict_are_of_the_kind_that_the_dataset_has(run_ranks, kind):
    elements = {
        "ragged": tf.RaggedTensor.from_row_lengths(np.arange(6), [1, 2, 0, 3]),
        "sparse": tf.sparse.from_dense(np.eye(4)),
        "dict": {"a": X[:4], "b": Y[:4]},
        "pair": (X[:4], Y[:4]),
    }[kind]
    batches = tf.data.Dataset.from_tensor_slices(elements).batch(2)
    dealt = run_ranks(2, lambda comm: deal(batches, None, comm))
    for batch, part in zip(batches, dealt, strict=True):
        (own,) = part.x
        assert part.x.element_spec == batches.element_spec
        for found, expected in zip(
            *(tf.nest.flatten(value, expand_composites=True) for value in (own, batch)), strict=True
        ):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("error", "others"), [(OSError("no disk"), OSError), (tf.errors.OutOfRangeError(None, None, "no disk"), PeerError)]
)
def test_an_error_of_one_rank_is_raised_on_all(run_ranks, error, others):
    def on_rank(comm):
        with pytest.raises(Exception, match="no disk") as caught, failing_together(comm):
            if comm.rank == 1:
                raise error
        return type(caught.value), str(caught.value)

    found = run_ranks(3, on_rank)
    assert found[1][0] is type(error)
    for rank in (0, 2):
        assert found[rank][0] is others and found[rank][1].startswith("[rank 1 of 3] ")
