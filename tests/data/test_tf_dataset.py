"""`shard` of a `tf.data.Dataset`: of its elements if they are samples, of each element's rows if they are batches."""

import collections
import warnings

import numpy as np
import pytest
import tensorflow as tf

import easyscale

SIZES = [1, 2, 3, 4]
over_sizes = pytest.mark.parametrize("size", SIZES)


@pytest.fixture
def shards(run_ranks):
    """`shards(size, dataset)`: what `shard(dataset)` returns on each of `size` workers."""
    return lambda size, *data, **how: run_ranks(size, lambda comm: easyscale.shard(*data, **how))


def _lists(dataset):
    return [batch.tolist() for batch in dataset.as_numpy_iterator()]


def _expect_each_batch_divided(parts, whole):
    """The workers' `k`-th batches together are the `k`-th of `whole`, which counts up."""
    size = len(parts)
    for rank, part in enumerate(parts):
        assert all(number % size == rank for batch in part for number in batch)
        assert all(part), "an empty batch"
    for k, batch in enumerate(whole):
        together = sorted(number for part in parts if k < len(part) for number in part[k])
        assert together == batch
    assert max(map(len, parts)) == len(whole)


@over_sizes
def test_samples_go_to_workers_in_turn(shards, size):
    dataset = tf.data.Dataset.range(11)
    for rank, part in enumerate(shards(size, dataset)):
        numbers = list(range(rank, 11, size))
        assert list(part.as_numpy_iterator()) == numbers
        assert part.cardinality() == len(numbers)
        assert part.element_spec == dataset.element_spec


@over_sizes
def test_samples_with_a_label_each_are_no_batches(shards, size):
    dataset = tf.data.Dataset.from_tensor_slices((np.arange(20).reshape(10, 2), np.arange(10)))
    for rank, part in enumerate(shards(size, dataset)):
        assert [(x.tolist(), y) for x, y in part.as_numpy_iterator()] == [
            ([2 * i, 2 * i + 1], i) for i in range(rank, 10, size)
        ]


@over_sizes
@pytest.mark.parametrize(
    "samples, batch",
    [(24, 12), (24, 5), (23, 4), (25, 12), (13, 6), (5, 5)],
    ids=["all_divide", "not_divided", "short_last", "last_of_one", "last_of_one_shifted", "one_batch"],
)
def test_each_batch_is_divided(shards, size, samples, batch):
    dataset = tf.data.Dataset.range(samples).batch(batch)
    whole = _lists(dataset)
    assert sum(whole, []) == list(range(samples))
    parts = shards(size, dataset.cache().prefetch(1))
    _expect_each_batch_divided([_lists(part) for part in parts], whole)
    assert [int(part.cardinality()) for part in parts] == [len(_lists(part)) for part in parts]


@pytest.mark.parametrize("samples, is_known", [(24, True), (22, True), (21, False)])
def test_batches_that_are_mapped_are_counted_if_the_last_one_has_rows_to_spare(shards, samples, is_known):
    parts = shards(2, tf.data.Dataset.range(samples).batch(6).map(lambda x: x + 1).prefetch(1))
    assert {int(part.cardinality()) for part in parts} == {4 if is_known else tf.data.UNKNOWN_CARDINALITY}
    assert sorted(sum(sum(map(_lists, parts), []), [])) == [*range(1, samples + 1)]


def test_a_last_batch_of_fewer_than_workers_leaves_some_without(shards):
    parts = shards(4, tf.data.Dataset.range(10).batch(8))
    assert [_lists(part) for part in parts] == [[[0, 4], [8]], [[1, 5], [9]], [[2, 6]], [[3, 7]]]


def test_a_shard_gives_the_same_in_every_epoch(shards):
    part = shards(3, tf.data.Dataset.range(10).batch(4))[1]
    assert _lists(part) == _lists(part) == [[1], [4, 7]]


@over_sizes
def test_batches_that_all_workers_divide_keep_their_shapes_and_cardinality(shards, size):
    dataset = tf.data.Dataset.from_tensor_slices((np.zeros((30, 5), "float32"), np.arange(30)))
    for part in shards(size, dataset.batch(12, drop_remainder=True)):
        x, y = part.element_spec
        assert x.shape == (12 // size, 5)
        assert y.shape == (12 // size,)
        assert (x.dtype, y.dtype) == (tf.float32, tf.int64)
        assert part.cardinality() == 2


@over_sizes
def test_batches_of_a_static_size_are_divided(shards, size):
    for batch in (12, 7):
        dataset = tf.data.Dataset.range(40).batch(batch, drop_remainder=True)
        _expect_each_batch_divided([_lists(part) for part in shards(size, dataset)], _lists(dataset))


@pytest.mark.parametrize("size", [2, 3, 4])
def test_batches_that_do_not_divide_keep_all_but_the_first_dimension(shards, size):
    dataset = tf.data.Dataset.from_tensor_slices(np.zeros((30, 5, 3), "float16")).batch(7)
    for part in shards(size, dataset):
        assert part.element_spec == tf.TensorSpec((None, 5, 3), tf.float16)


@over_sizes
@pytest.mark.parametrize("drop_remainder", [False, True])
@pytest.mark.parametrize("kind", ["pair", "triple", "dict", "nested", "single", "named"])
def test_elements_keep_their_structure(shards, size, kind, drop_remainder):
    Named = collections.namedtuple("Named", ["x", "y"])
    x = np.arange(24)
    elements = {
        "pair": (x, x * 10),
        "triple": (x, x * 10, x / 2),
        "dict": {"b": x, "a": x * 10},
        "nested": ({"left": x, "right": x * 10}, x / 2),
        "single": (x,),
        "named": Named(x, x * 10),
    }[kind]
    dataset = tf.data.Dataset.from_tensor_slices(elements).batch(12, drop_remainder=drop_remainder)
    parts = shards(size, dataset)
    for part in parts:
        tf.nest.assert_same_structure(part.element_spec, dataset.element_spec)
        for own, spec in zip(tf.nest.flatten(part.element_spec), tf.nest.flatten(dataset.element_spec), strict=True):
            assert own.dtype == spec.dtype
    for whole, *batches in zip(dataset.as_numpy_iterator(), *(part.as_numpy_iterator() for part in parts), strict=True):
        for rank, batch in enumerate(batches):
            assert type(batch) is type(whole)
            for own, array in zip(tf.nest.flatten(batch), tf.nest.flatten(whole), strict=True):
                np.testing.assert_array_equal(own, array[rank::size])


@over_sizes
def test_cardinality_that_is_not_known_stays_so(shards, size):
    dataset = tf.data.Dataset.range(40).filter(lambda number: number < 26).batch(12, drop_remainder=True)
    assert dataset.cardinality() == tf.data.UNKNOWN_CARDINALITY
    parts = shards(size, dataset)
    assert {int(part.cardinality()) for part in parts} == {tf.data.UNKNOWN_CARDINALITY}
    _expect_each_batch_divided([_lists(part) for part in parts], _lists(dataset))


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("drop_remainder", [False, True])
def test_a_dataset_without_end_has_none_on_any_worker(shards, size, drop_remainder):
    dataset = tf.data.Dataset.range(7).repeat().batch(6, drop_remainder=drop_remainder)
    whole = _lists(dataset.take(9))
    for rank, part in enumerate(shards(size, dataset)):
        assert _lists(part.take(9)) == [batch[rank::size] for batch in whole]
        if drop_remainder:
            assert part.cardinality() == tf.data.INFINITE_CARDINALITY


@pytest.mark.parametrize("drop_remainder", [False, True])
def test_ragged_batches_are_divided(shards, drop_remainder):
    rows = tf.ragged.constant([[1], [2, 3], [4], [5, 6, 7], [8], []])
    dataset = tf.data.Dataset.from_tensor_slices(rows).batch(4, drop_remainder=drop_remainder)
    part = shards(2, dataset)[1]
    expected = [[[2, 3], [5, 6, 7]], [[]]][: 1 if drop_remainder else 2]
    assert [batch.to_list() for batch in part] == expected


def test_whether_elements_are_batches_may_be_said(shards):
    features = tf.data.Dataset.from_tensor_slices(np.arange(12).reshape(3, 4))  # 3 samples, or 3 batches of 4
    assert [_lists(part) for part in shards(2, features, batched=True)] == [
        [[0, 2], [4, 6], [8, 10]],
        [[1, 3], [5, 7], [9, 11]],
    ]
    assert [_lists(part) for part in shards(2, features, batched=False)] == [
        [[0, 1, 2, 3], [8, 9, 10, 11]],
        [[4, 5, 6, 7]],
    ]


def test_two_datasets_are_each_sharded(shards):
    train, test = shards(2, tf.data.Dataset.range(4), tf.data.Dataset.range(6).batch(4))[1]
    assert list(train.as_numpy_iterator()) == [1, 3]
    assert _lists(test) == [[1, 3], [5]]


def test_arrays_beside_a_dataset_are_sharded_too(shards):
    array, dataset = shards(2, np.arange(4), tf.data.Dataset.range(4))[1]
    assert array.tolist() == list(dataset.as_numpy_iterator()) == [1, 3]


def test_one_worker_gets_the_dataset_itself(shards):
    dataset = tf.data.Dataset.range(4).batch(2)
    assert shards(1, dataset)[0] is dataset


@pytest.mark.parametrize(
    "dataset, where, remedy",
    [
        (tf.data.Dataset.range(2), "", "fewer workers"),
        (
            tf.data.Dataset.range(8).batch(2, drop_remainder=True),
            " of each batch",
            "fewer workers, or make larger batches",
        ),
    ],
    ids=["samples", "batches"],
)
def test_fewer_samples_than_workers_is_an_error(shards, dataset, where, remedy):
    with pytest.raises(ValueError) as raised:
        shards(3, dataset)
    assert str(raised.value) == (
        f"every worker must get at least one sample{where}. Received: 2 samples for 3 workers. Start {remedy}"
    )


def test_samples_that_look_like_batches_are_not_guessed_at(shards):
    pairs = tf.data.Dataset.from_tensor_slices((np.zeros((8, 6)), np.zeros((8, 6))))
    message = r"`batched` must be given .* shapes \(6,\), \(6,\)\. Pass `batched=True`"
    with pytest.raises(ValueError, match=message) as raised:
        shards(2, pairs)
    assert "\n" not in str(raised.value)
    with pytest.raises(ValueError, match="`batched` must be given"):
        shards(2, pairs.batch(4, drop_remainder=True).unbatch())
    assert len(list(shards(2, pairs, batched=False)[0])) == 4
    assert len(list(shards(2, pairs.batch(4, drop_remainder=True).prefetch(1))[0])) == 2


def test_batches_that_local_batch_has_divided_are_told_not_to_be_divided_again(run_ranks):
    whole = tf.data.Dataset.range(48)

    def divide(take):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run_ranks(2, lambda comm: take() and None)
        return [str(warning.message) for warning in caught]

    right = [
        lambda: easyscale.shard(whole).batch(easyscale.local_batch(24)),
        lambda: [easyscale.local_batch(24), easyscale.shard(whole.batch(24))],
        lambda: [easyscale.local_batch(24), easyscale.shard(whole.batch(12))],  # the global batch of another fit()
    ]
    for take in right:
        assert divide(take) == []
    (message,) = divide(lambda: easyscale.shard(whole.batch(easyscale.local_batch(24)).prefetch(1)))
    assert message == (
        "batches must be divided once. Received: batches of 12, as `local_batch(24)` has returned, for `shard` to "
        "divide again. Give it batches of 24, or single samples"
    )
