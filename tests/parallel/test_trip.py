"""What comes to the owners of slices, what comes back, and what that sends."""

import numpy as np
import pytest

from easyscale.layout.sliced import Sliced
from easyscale.parallel.split.trip import Columns, Lookup, Rows, Summands

SIZES = pytest.mark.parametrize("size", [1, 2, 3, 4])


def _of_all(size, width, uneven=True):
    """Rows of each worker, in whole numbers: `r` rows on worker `r`, or 4 on each."""
    generator = np.random.default_rng(size)
    counts = range(size) if uneven else [4] * size
    return [generator.integers(-9, 9, (count, width)).astype("float32") for count in counts]


@SIZES
def test_columns_give_each_worker_the_product_and_both_gradients(run_ranks, size):
    """The owners' products with whole numbers are those of one process, to the bit."""
    kernel = np.random.default_rng(0).integers(-9, 9, (5, 7)).astype("float32")
    x, dy = _of_all(size, 5), _of_all(size, 7)

    def on_rank(comm):
        trip, sliced = Columns(comm, 7), Sliced(kernel.shape, 1, comm)
        own = sliced.part(kernel)
        arrived = trip.to_owners(x[comm.rank])
        result = trip.to_workers(arrived @ own)
        by_result = trip.gradients_to_owners(dy[comm.rank])
        by_kernel = sliced.collect(arrived.T @ by_result)
        return result, by_kernel, trip.gradients_to_workers(by_result @ own.T)

    for rank, (result, by_kernel, by_rows) in enumerate(run_ranks(size, on_rank)):
        np.testing.assert_array_equal(result, x[rank] @ kernel)
        np.testing.assert_array_equal(by_kernel, np.concatenate(x).T @ np.concatenate(dy))
        np.testing.assert_array_equal(by_rows, dy[rank] @ kernel.T)


@SIZES
def test_rows_give_each_worker_the_product_and_both_gradients(run_ranks, size):
    kernel = np.random.default_rng(0).integers(-9, 9, (7, 5)).astype("float32")
    x, dy = _of_all(size, 7), _of_all(size, 5)

    def on_rank(comm):
        trip, sliced = Rows(comm, 7), Sliced(kernel.shape, 0, comm)
        own = sliced.part(kernel)
        arrived = trip.to_owners(x[comm.rank])
        result = trip.to_workers(arrived @ own)
        by_result = trip.gradients_to_owners(dy[comm.rank])
        by_kernel = sliced.collect(arrived.T @ by_result)
        return result, by_kernel, trip.gradients_to_workers(by_result @ own.T)

    for rank, (result, by_kernel, by_rows) in enumerate(run_ranks(size, on_rank)):
        np.testing.assert_array_equal(result, x[rank] @ kernel)
        np.testing.assert_array_equal(by_kernel, np.concatenate(x).T @ np.concatenate(dy))
        np.testing.assert_array_equal(by_rows, dy[rank] @ kernel.T)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_summands_give_each_worker_the_sum_of_what_owners_make_of_all_inputs_and_both_gradients(run_ranks, size):
    """Two arrays, `z_r = (x w_r) * (y w_r)`, of which workers without a row do not know the shape."""
    kernel = np.random.default_rng(0).integers(-9, 9, (5, 7)).astype("float32")
    generator = np.random.default_rng(size)
    x, y = ([generator.integers(-9, 9, (rank, 2, 5)).astype("float32") for rank in range(size)] for _ in range(2))
    dz = [np.ones((rank, 2, 7), "float32") for rank in range(size)]

    def on_rank(comm):
        trip, own = Summands(comm, 7), kernel * (comm.rank + 1)
        given = [array[comm.rank] if comm.rank else np.zeros((0, 0, 5), "float32") for array in (x, y)]
        a, b = (trip.to_owners(array) @ own for array in given)
        result = trip.to_workers(a * b)
        by_result = trip.gradients_to_owners(dz[comm.rank])
        return result, [trip.gradients_to_workers(by_result * other @ own.T) for other in (b, a)]

    for rank, (result, (by_x, by_y)) in enumerate(run_ranks(size, on_rank)):
        squares = sum((r + 1) ** 2 for r in range(size))
        np.testing.assert_array_equal(result, squares * (x[rank] @ kernel) * (y[rank] @ kernel))
        np.testing.assert_array_equal(by_x, squares * (y[rank] @ kernel) @ kernel.T)
        np.testing.assert_array_equal(by_y, squares * (x[rank] @ kernel) @ kernel.T)


@pytest.mark.parametrize("kind", [Columns, Summands])
def test_arrays_of_a_call_that_differ_in_their_rows_are_told_in_one_line(run_ranks, kind):
    def on_rank(comm):
        trip = kind(comm, 7)
        trip.give([np.zeros((1, 5))] * 2)
        with pytest.raises(ValueError, match=r"Received: \[2, 2\] and \[1, 2\] on ranks 0 to 1\. Give it as many"):
            trip.give([np.zeros((2, 5)), np.zeros((1 + comm.rank, 5))])

    run_ranks(2, on_rank)


def test_inputs_whose_shapes_differ_between_workers_are_told_in_one_line(run_ranks):
    def on_rank(comm):
        with pytest.raises(ValueError) as raised:
            Summands(comm, 7).to_owners(np.zeros((2, 3 + comm.rank // 2, 5)))
        return str(raised.value)

    for message in run_ranks(3, on_rank):
        assert r"Received: [(2, 3, 5), (2, 3, 5), (2, 4, 5)] on ranks 0 to 2. Pad all batches to one length" in message
        assert "\n" not in message


@SIZES
def test_a_lookup_brings_each_number_to_the_owner_of_its_row_and_its_gradient_as_well(run_ranks, size):
    table = np.arange(22, dtype="float32").reshape(11, 2)
    numbers = [np.random.default_rng(rank).integers(0, 11, 3 * rank) for rank in range(size)]

    def on_rank(comm):
        trip, sliced = Lookup(comm, 11), Sliced(table.shape, 0, comm)
        arrived = trip.to_owners(numbers[comm.rank])
        result = trip.to_workers(sliced.part(table)[arrived])
        by_slice = np.zeros_like(sliced.part(table))
        np.add.at(by_slice, arrived, trip.gradients_to_owners(result))
        return result, sliced.collect(by_slice)

    expected = np.zeros_like(table)
    np.add.at(expected, np.concatenate(numbers), table[np.concatenate(numbers)])
    for rank, (result, by_table) in enumerate(run_ranks(size, on_rank)):
        np.testing.assert_array_equal(result, table[numbers[rank]])
        np.testing.assert_array_equal(by_table, expected)


def test_a_number_that_is_in_no_row_is_told_in_one_line(run_ranks):
    def on_rank(comm):
        Lookup(comm, 11).to_owners(np.array([3, 11]))

    with pytest.raises(ValueError, match=r"must be from 0 to 10\. Received: numbers from 3 to 11"):
        run_ranks(1, on_rank)


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("kind", [Columns, Rows, Summands])
def test_a_step_sends_what_the_docstring_says(run_ranks, kind, size):
    """4 rows of 24 numbers in and 36 out on each worker, of float32: a = 384 bytes, b = 576."""
    into, out = _of_all(size, 24, uneven=False), _of_all(size, 36, uneven=False)
    a, b = 4 * 24 * 4, 4 * 36 * 4

    def on_rank(comm):
        trip, sent = kind(comm, {Columns: 36, Rows: 24, Summands: 24}[kind]), []

        def counted(act, rows):
            before = comm.sent.bytes, comm.sent.messages
            result = act(rows)
            sent.append((comm.sent.bytes - before[0], comm.sent.messages - before[1]))
            return result

        counts = comm.sent.bytes, comm.sent.messages
        comm.all_gather_rows(np.zeros(2 if kind is Summands else 1, np.int64))  # is not in the formula
        counts = comm.sent.bytes - counts[0], comm.sent.messages - counts[1]
        arrived = counted(trip.to_owners, into[comm.rank])
        sent[0] = sent[0][0] - counts[0], sent[0][1] - counts[1]
        counted(trip.to_workers, np.zeros((len(arrived), trip_width(comm, kind)), "float32"))
        by_result = counted(trip.gradients_to_owners, out[comm.rank])
        counted(trip.gradients_to_workers, np.zeros_like(arrived))
        assert len(by_result) == 4 * size
        return sent

    def trip_width(comm, kind):
        return 36 // comm.size if kind is Columns else 36

    far = size - 1
    passes = {
        Columns: [far * a, far * b // size, far * b // size, far * a],
        Rows: [far * a // size, far * b, far * b, far * a // size],
        Summands: [far * a, far * b, far * b, far * a],
    }[kind]
    assert sum(passes) == kind.cost(a, b, size)
    assert sum(passes[:3]) == kind.cost(a, b, size, has_gradient=False)
    for sent in run_ranks(size, on_rank):
        assert sent == [(nbytes, far) for nbytes in passes]


@pytest.mark.parametrize("size", [2, 3, 4])
def test_several_arrays_of_a_call_send_what_the_docstrings_say(run_ranks, size):
    """4 rows on each worker: two inputs of attention and a mask of bytes; rows of a last layer and their labels."""

    def sent_by(comm, trip, given, result, floats):
        counted = comm.sent.bytes, comm.sent.messages
        for array in given:
            comm.all_gather_rows(np.zeros(array.ndim if isinstance(trip, Summands) else 1, np.int64))
        small = comm.sent.bytes - counted[0], comm.sent.messages - counted[1]
        before = comm.sent.bytes, comm.sent.messages
        arrived = trip.give(given)
        trip.gradients_to_owners(trip.to_workers(np.zeros((len(arrived[0]), *result), "float32")))
        for array in arrived[:floats]:
            trip.gradients_to_workers(array)
        return comm.sent.bytes - before[0] - small[0], comm.sent.messages - before[1] - small[1]

    def on_rank(comm):
        query, value = np.zeros((4, 6, 8), "float32"), np.zeros((4, 3, 5), "float32")
        heads = sent_by(comm, Summands(comm, 8), [query, value, np.ones((4, 6, 3), "uint8")], (6, 8), 2)
        rows, labels = np.zeros((4, 8), "float32"), np.zeros(4, "int32")
        return heads, sent_by(comm, Columns(comm, size, 4), [rows, labels], (4,), 1)

    far, a, b, mask = size - 1, 4 * 4 * (6 * 8 + 3 * 5), 4 * 4 * 6 * 8, 4 * 6 * 3
    of_rows, m = 4 * 4 * 8, 4
    assert Summands.cost(a, b, size) == far * 2 * (a + b)
    for heads, vocabulary in run_ranks(size, on_rank):
        assert heads == (far * (2 * (a + b) + mask), far * (4 + 2 + 1))
        assert vocabulary == (far * (2 * of_rows + 36 * m), far * 5)


def test_a_lookup_sends_what_the_docstring_says(run_ranks):
    """12 numbers of 8 bytes on each of 3 workers, 4 for each owner, and rows of 5 float32."""

    def on_rank(comm):
        trip, numbers = Lookup(comm, 6), np.arange(12) % 6
        row = comm.sent.bytes, comm.sent.messages
        comm.all_gather_rows(np.zeros(3, np.int64))  # as many numbers for each owner
        row = comm.sent.bytes - row[0], comm.sent.messages - row[1]
        before = comm.sent.bytes, comm.sent.messages
        arrived = trip.to_owners(numbers)
        trip.gradients_to_owners(trip.to_workers(np.zeros((len(arrived), 5), "float32")))
        return comm.sent.bytes - before[0] - row[0], comm.sent.messages - before[1] - row[1]

    sent = 2 * (12 * 8 + 2 * 12 * 5 * 4) // 3
    assert sent == Lookup.cost(12 * 8, 12 * 5 * 4, 3)
    assert run_ranks(3, on_rank) == [(sent, 3 * 2)] * 3
