"""`shard` of arrays: element `i` goes to worker `i % size`, whatever holds the elements."""

import collections

import numpy as np
import pytest
import tensorflow as tf

import easyscale

SIZES = [1, 2, 3, 4]
over_sizes = pytest.mark.parametrize("size", SIZES)


@pytest.fixture
def shards(run_ranks):
    """`shards(size, *data)`: what `shard(*data)` returns on each of `size` workers."""
    return lambda size, *data: run_ranks(size, lambda comm: easyscale.shard(*data))


class Table:
    """What pandas' objects have: rows behind `iloc`, and something else behind `[]`."""

    def __init__(self, rows):
        self.rows = rows
        self.shape = rows.shape

    @property
    def iloc(self):
        return _Rows(self.rows)

    def __getitem__(self, column):
        raise KeyError(column)


class _Rows:
    def __init__(self, rows):
        self._rows = rows

    def __getitem__(self, which):
        return Table(self._rows[which])


@over_sizes
def test_array_is_dealt_out_like_cards(shards, size):
    x = np.arange(22).reshape(11, 2)
    parts = shards(size, x)
    for rank, part in enumerate(parts):
        np.testing.assert_array_equal(part, [[2 * i, 2 * i + 1] for i in range(11) if i % size == rank])
        assert part.flags.c_contiguous


@over_sizes
@pytest.mark.parametrize("batch", [4, 12])
def test_the_workers_kth_batches_together_are_the_kth_batch(shards, size, batch):
    if batch % size:
        batch = size * 4
    x = np.arange(50)
    parts = shards(size, x)
    local = batch // size
    for k in range(-(-50 // batch)):
        together = np.concatenate([part[k * local : (k + 1) * local] for part in parts])
        assert sorted(together) == x[k * batch : (k + 1) * batch].tolist()


def test_several_arrays_come_back_as_a_tuple_and_one_alone(shards):
    x, y, w = np.arange(6), np.arange(6) * 10, np.arange(6) / 2
    second = shards(2, x, y, w)[1]
    assert isinstance(second, tuple)
    assert [part.tolist() for part in second] == [[1, 3, 5], [10, 30, 50], [0.5, 1.5, 2.5]]
    assert shards(2, x)[1].tolist() == [1, 3, 5]


def test_structures_keep_their_form(shards):
    Pair = collections.namedtuple("Pair", ["a", "b"])
    x = np.arange(4)
    data = {"one": x, "two": [x + 10, (x + 20, None)], "pair": Pair(x + 30, {"deep": x + 40})}
    part = shards(2, data)[1]
    assert isinstance(part["two"], list)
    assert type(part["two"][1]) is tuple
    assert type(part["pair"]) is Pair
    assert list(part) == ["one", "two", "pair"]
    assert tf.nest.map_structure(lambda leaf: leaf if leaf is None else leaf.tolist(), part) == {
        "one": [1, 3],
        "two": [[11, 13], ([21, 23], None)],
        "pair": Pair([31, 33], {"deep": [41, 43]}),
    }


def test_none_stays_none(shards):
    x = np.arange(4)
    part, nothing = shards(2, x, None)[0]
    assert part.tolist() == [0, 2]
    assert nothing is None


def test_ordered_dict_stays_one(shards):
    part = shards(2, collections.OrderedDict(b=np.arange(2), a=np.arange(2)))[1]
    assert type(part) is collections.OrderedDict
    assert list(part) == ["b", "a"]


@over_sizes
def test_tables_are_cut_by_rows(shards, size):
    parts = shards(size, Table(np.arange(14).reshape(7, 2)))
    for rank, part in enumerate(parts):
        assert isinstance(part, Table)
        assert part.rows[:, 0].tolist() == [2 * i for i in range(7) if i % size == rank]


@over_sizes
def test_tensors_stay_tensors(shards, size):
    for rank, part in enumerate(shards(size, tf.range(7))):
        assert isinstance(part, tf.Tensor)
        assert part.numpy().tolist() == [i for i in range(7) if i % size == rank]


@over_sizes
def test_list_of_numbers_or_strings_is_one_array(shards, size):
    numbers, words = list(range(9)), [f"word {i}" for i in range(9)]
    for rank, (some_numbers, some_words) in enumerate(shards(size, numbers, words)):
        assert some_numbers == [i for i in range(9) if i % size == rank]
        assert some_words == [f"word {i}" for i in range(9) if i % size == rank]


def test_list_of_arrays_is_several_arrays(shards):
    assert [part.tolist() for part in shards(2, [np.arange(4), np.arange(4) + 10])[1]] == [[1, 3], [11, 13]]


def test_one_worker_gets_everything_as_it_was(shards):
    x = np.arange(5)
    assert shards(1, x)[0].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("samples, size", [(1, 2), (3, 4), (0, 1), (2, 3)])
def test_fewer_samples_than_workers_is_an_error_on_every_worker(run_ranks, samples, size):
    def on_rank(comm):
        with pytest.raises(ValueError) as raised:
            easyscale.shard(np.zeros((samples, 2)), np.zeros(samples))
        return str(raised.value)

    message = (
        "every worker must get at least one sample. "
        f"Received: {samples} sample{'s' * (samples != 1)} for {size} workers. Start fewer workers"
    )
    assert run_ranks(size, on_rank) == [message] * size


@pytest.mark.parametrize(
    "data",
    [(np.zeros(5), np.zeros(4)), ({"a": np.zeros(5), "b": [0] * 4},), (np.zeros((5, 4)), [np.zeros(4)])],
    ids=["arrays", "dict", "list"],
)
def test_arrays_of_different_lengths_are_an_error(data):
    with pytest.raises(ValueError, match=r"^arrays must have the same length\. Received: lengths \[5, 4\]\."):
        easyscale.shard(*data)


@pytest.mark.parametrize(
    "data, kind",
    [
        ((i for i in range(3)), "generator"),
        (iter([1, 2]), "list_iterator"),
        (3, "int"),
        (np.array(3), "ndarray"),
        ("text", "str"),
        (b"text", "bytes"),
        ({"a": 3.0}, "float"),
        ({1, 2, 3}, "set"),
    ],
    ids=["generator", "iterator", "number", "scalar", "text", "bytes", "dict of numbers", "set"],
)
@pytest.mark.parametrize("beside", [(), (np.zeros(3),)], ids=["alone", "beside"])
def test_what_has_no_rows_is_an_error(data, kind, beside):
    with pytest.raises(ValueError) as raised:
        easyscale.shard(data, *beside)
    assert str(raised.value) == (
        "`shard` must be given arrays, a `tf.data.Dataset` or a `keras.utils.PyDataset`. "
        f"Received: {kind}. A generator must yield this worker's part by itself"
    )


def test_rows_that_cannot_be_taken_are_an_error():
    with pytest.raises(ValueError, match=r"^arrays must let their rows be taken\. Received: SparseTensor"):
        easyscale.shard(tf.sparse.from_dense(np.eye(3)))


@pytest.mark.parametrize(
    "data, received", [((), "nothing"), ((None,), "None"), (({}, None), "{}, None"), (([],), r"\[\]")]
)
def test_nothing_is_an_error(data, received):
    with pytest.raises(ValueError, match=rf"^`shard` must be given data\. Received: {received}\. Try `x, y = "):
        easyscale.shard(*data)


@pytest.mark.parametrize(
    "data", [[[1, 2], [3, 4], [5, 6]], [[1, 2], [3]], [[], [1]], {"a": [["one", "two"]]}, [(1, 2), (3, 4)]]
)
def test_a_list_of_lists_is_an_error_because_its_rows_are_not_clear(data):
    with pytest.raises(ValueError, match=r"^rows must be those of an array\. Received: a list of lists\. Pass `np\."):
        easyscale.shard(data)


def test_ragged_tensors_are_divided_by_rows(shards):
    parts = shards(2, tf.ragged.constant([[1, 2], [3], [], [4, 5, 6]]))
    assert [part.to_list() for part in parts] == [[[1, 2], []], [[3], [4, 5, 6]]]


def test_the_communicator_may_be_said(run_ranks):
    comms = run_ranks(3, lambda comm: comm)
    assert easyscale.shard(np.arange(7), communicator=comms[2]).tolist() == [2, 5]
    assert easyscale.shard(np.arange(7)).tolist() == [0, 1, 2, 3, 4, 5, 6]
