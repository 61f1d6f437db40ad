"""What `shard` divides, `unshard` puts together."""

import numpy as np
import pytest

import easyscale


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("count", [5, 6, 7, 20])
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "float16"])
def test_parts_come_together_in_their_order(run_ranks, size, count, dtype):
    whole = (np.arange(count * 6).reshape(count, 2, 3) % 5).astype(dtype)
    for result in run_ranks(size, lambda comm: easyscale.unshard(easyscale.shard(whole))):
        assert result.dtype == whole.dtype
        np.testing.assert_array_equal(result, whole)


def test_structures_and_several_arguments(run_ranks):
    a, b = np.arange(7), np.arange(14).reshape(7, 2)

    def on_rank(comm):
        local = easyscale.shard({"a": a, "b": (b, None)})
        return easyscale.unshard(local, easyscale.shard(a))

    for structure, again in run_ranks(3, on_rank):
        np.testing.assert_array_equal(structure["a"], a)
        np.testing.assert_array_equal(structure["b"][0], b)
        assert structure["b"][1] is None
        np.testing.assert_array_equal(again, a)


def test_fewer_rows_than_workers_and_none(run_ranks):
    for result in run_ranks(3, lambda comm: easyscale.unshard(np.arange(2)[comm.rank :: 3])):
        np.testing.assert_array_equal(result, [0, 1])
    assert [whole.size for whole in run_ranks(2, lambda comm: easyscale.unshard(np.zeros((0, 3))))] == [0, 0]


@pytest.mark.parametrize(
    "part",
    [
        lambda rank: np.zeros([4, 2, 3][rank]),  # not as shard divides 9
        lambda rank: np.zeros((3, 2 + rank)),
        lambda rank: np.zeros(3, ["float32", "float64", "float32"][rank]),
        lambda rank: np.float32(rank),
    ],
)
def test_what_is_not_a_part_is_an_error_on_every_rank(run_ranks, part):
    def on_rank(comm):
        with pytest.raises(ValueError, match="must be given each worker's part of one array.* on worker 2"):
            easyscale.unshard(part(comm.rank))

    run_ranks(3, on_rank)


def test_objects_are_refused(run_ranks):
    with pytest.raises(TypeError, match="must be given arrays of numbers"):
        easyscale.unshard(np.array([{}, {}]))
    with pytest.raises(ValueError, match="Received: nothing"):
        easyscale.unshard()


def test_a_number_is_not_a_part_and_the_error_says_what_is():
    with pytest.raises(ValueError) as raised:
        easyscale.unshard(np.int64(3))
    assert str(raised.value) == (
        "`unshard` must be given each worker's part of one array, as `shard` divides it. Received: int64 of shape () "
        "on worker 0. Pass an array with a row for each sample of this worker's part"
    )
