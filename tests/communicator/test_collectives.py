"""What every communicator has: all collectives on threads, over sizes that are and are not powers of two."""

import numpy as np
import pytest

from easyscale import communicator
from easyscale.communicator import Traffic

over_sizes = pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8])


@over_sizes
def test_all_gather_rows_has_every_row_in_the_order_of_ranks(run_ranks, size):
    def on_rank(comm):
        return comm.all_gather_rows(np.full((2, 3), comm.rank, "float32"))

    expected = np.repeat(np.arange(size, dtype="float32"), 6).reshape(size, 2, 3)
    for rows in run_ranks(size, on_rank):
        assert rows.dtype == np.float32
        np.testing.assert_array_equal(rows, expected)


@over_sizes
def test_all_gather_rows_takes_records(run_ranks, size):
    kind = np.dtype([("number", "i8"), ("weight", "f8")])

    def on_rank(comm):
        return comm.all_gather_rows(np.array([(comm.rank, comm.rank / 4)], kind))

    for rows in run_ranks(size, on_rank):
        assert rows["number"][:, 0].tolist() == list(range(size))
        assert rows["weight"][:, 0].tolist() == [rank / 4 for rank in range(size)]


@over_sizes
def test_all_gather_rows_sends_a_logarithm_of_messages(run_ranks, size):
    def on_rank(comm):
        comm.all_gather_rows(np.zeros(5, "float64"))
        return comm.sent.messages, comm.sent.bytes

    steps = {1: 0, 2: 1, 3: 2, 4: 2, 5: 3, 8: 3}[size]  # ceil(log2 size)
    assert run_ranks(size, on_rank) == [(steps, 40 * (size - 1))] * size


@over_sizes
def test_broadcast_copies_every_roots_buffer(run_ranks, size):
    def on_rank(comm):
        seen = []
        for root in range(size):
            buffer = np.full(7, 100 * comm.rank + root)
            comm.broadcast(buffer, root)
            seen.append(buffer.tolist())
        return seen

    expected = [[100 * root + root] * 7 for root in range(size)]
    assert run_ranks(size, on_rank) == [expected] * size


@over_sizes
def test_broadcast_sends_the_buffer_once_to_every_other_rank(run_ranks, size):
    def on_rank(comm):
        comm.broadcast(np.zeros(3), size - 1)
        return comm.sent.messages, comm.sent.bytes

    sent = run_ranks(size, on_rank)
    assert sum(messages for messages, _ in sent) == size - 1
    assert sum(nbytes for _, nbytes in sent) == 24 * (size - 1)
    assert max(messages for messages, _ in sent) == (size - 1).bit_length()  # the root, a message for each level


@over_sizes
def test_all_gather_object_returns_every_ranks_value(run_ranks, size):
    def on_rank(comm):
        return comm.all_gather_object({"rank": comm.rank, "ü": ["x" * comm.rank, None, True]})

    expected = [{"rank": rank, "ü": ["x" * rank, None, True]} for rank in range(size)]
    assert run_ranks(size, on_rank) == [expected] * size


def test_share_takes_only_what_json_takes(run_ranks):
    with pytest.raises(TypeError, match="not JSON serializable"):
        communicator.get("local").all_gather_object(object())


@over_sizes
def test_barrier_lets_nobody_pass_before_all_have_come(run_ranks, size):
    came = []

    def on_rank(comm):
        came.append(comm.rank)
        comm.barrier()
        return len(came)

    assert run_ranks(size, on_rank) == [size] * size


def _bounds(size, length):
    """Parts of different lengths, the first of them empty when there are several."""
    inside = [length * rank // size for rank in range(size - 1)]
    return np.array([0, *inside, length])


@over_sizes
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
def test_reduce_scatter_leaves_the_sum_in_every_ranks_part(run_ranks, size, dtype):
    bounds = _bounds(size, 23)

    def on_rank(comm):
        buffer = (np.arange(23) + comm.rank).astype(dtype)
        comm.reduce_scatter(buffer, bounds)
        return buffer[bounds[comm.rank] : bounds[comm.rank + 1]]

    expected = size * np.arange(23) + size * (size - 1) // 2
    np.testing.assert_array_equal(np.concatenate(run_ranks(size, on_rank)), expected)


@over_sizes
def test_all_gather_copies_every_ranks_part(run_ranks, size):
    bounds = _bounds(size, 23)

    def on_rank(comm):
        buffer = np.full(23, -1)
        buffer[bounds[comm.rank] : bounds[comm.rank + 1]] = comm.rank
        comm.all_gather(buffer, bounds)
        return buffer

    expected = np.repeat(np.arange(size), np.diff(bounds))
    for buffer in run_ranks(size, on_rank):
        np.testing.assert_array_equal(buffer, expected)


@over_sizes
@pytest.mark.parametrize("length", [0, 1, 7, 1000])
def test_all_reduce_sums_every_rank(run_ranks, size, length):
    def on_rank(comm):
        buffer = np.arange(length, dtype="float64") + comm.rank
        comm.all_reduce(buffer)
        return buffer

    expected = size * np.arange(length) + size * (size - 1) / 2
    for buffer in run_ranks(size, on_rank):
        np.testing.assert_array_equal(buffer, expected)


@over_sizes
def test_all_reduce_sends_each_part_to_its_rank_and_back(run_ranks, size):
    def on_rank(comm):
        comm.all_reduce(np.zeros(40 * size, "float32"))
        return comm.sent.messages, comm.sent.bytes

    assert run_ranks(size, on_rank) == [(2 * (size - 1), 2 * 160 * (size - 1))] * size


def test_traffic_counts_what_isend_takes(run_ranks):
    def on_rank(comm):
        before = repr(comm.sent)
        if comm.rank == 0:
            comm.send(np.zeros((2, 3), "float64"), 1)
            comm.send(np.zeros(0), 1)
        else:
            comm.receive(np.zeros(6, "float64"), 0)
            comm.receive(np.zeros(0), 0)
        return before, repr(comm.sent)

    none = "Traffic(messages=0, bytes=0)"
    assert run_ranks(2, on_rank) == [(none, "Traffic(messages=2, bytes=48)"), (none, none)]


def test_traffic_adds():
    traffic = Traffic()
    traffic.add(5)
    traffic.add(0)
    assert (traffic.messages, traffic.bytes) == (2, 5)
