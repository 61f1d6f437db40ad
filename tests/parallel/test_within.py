"""What travels within a group of ranks that share a batch: results, both gradients, and bytes."""

import numpy as np
import pytest

from easyscale.layout.sliced import Sliced
from easyscale.parallel.split.trip import Columns, Lookup, Rows, Summands, within

SIZES = pytest.mark.parametrize("size", [1, 2, 3, 4])


def _whole_numbers(*shape):
    return np.random.default_rng(0).integers(-9, 9, shape).astype("float32")


@SIZES
@pytest.mark.parametrize("kind", [Columns, Rows])
def test_a_product_and_both_gradients_are_those_of_whole_weights_on_all_ranks(run_ranks, size, kind):
    """5 rows of 7 numbers in and 9 out, of which no group of ranks has as many each."""
    rows, weights, by_result = _whole_numbers(5, 7), _whole_numbers(7, 9), _whole_numbers(5, 9)

    def on_rank(comm):
        trip = within(kind)(comm, 9 if kind is Columns else 7)
        sliced = Sliced(weights.shape, 1 if kind is Columns else 0, comm)
        arrived, own = trip.to_owners(rows), sliced.part(weights)
        result = trip.to_workers(arrived @ own)
        by_computed = trip.gradients_to_owners(by_result)
        return result, sliced.collect(arrived.T @ by_computed), trip.gradients_to_workers(by_computed @ own.T)

    for result, by_weights, by_rows in run_ranks(size, on_rank):
        np.testing.assert_array_equal(result, rows @ weights)
        np.testing.assert_array_equal(by_weights, rows.T @ by_result)
        np.testing.assert_array_equal(by_rows, by_result @ weights.T)


@SIZES
def test_summands_of_any_shape_are_summed_up_both_ways(run_ranks, size):
    rows = _whole_numbers(5, 3, 2)

    def on_rank(comm):
        trip = within(Summands)(comm, 8)
        assert trip.to_owners(rows) is rows and trip.gradients_to_owners(rows) is rows
        return trip.to_workers(rows * comm.rank), trip.gradients_to_workers(rows)

    for result, by_rows in run_ranks(size, on_rank):
        np.testing.assert_array_equal(result, rows * sum(range(size)))
        np.testing.assert_array_equal(by_rows, rows * size)


@SIZES
def test_a_lookup_finds_each_row_on_its_owner_and_its_gradient_stays_there(run_ranks, size):
    table, numbers = _whole_numbers(11, 2), np.random.default_rng(1).integers(0, 11, 20)
    by_result = _whole_numbers(20, 2)

    def on_rank(comm):
        trip, sliced = within(Lookup)(comm, 11), Sliced(table.shape, 0, comm)
        arrived, own = trip.to_owners(numbers), sliced.part(table)
        result, by_slice = trip.to_workers(own[arrived]), np.zeros_like(own)
        np.add.at(by_slice, arrived, trip.gradients_to_owners(by_result))
        return result, sliced.collect(by_slice)

    expected = np.zeros_like(table)
    np.add.at(expected, numbers, by_result)
    for result, by_table in run_ranks(size, on_rank):
        np.testing.assert_array_equal(result, table[numbers])
        np.testing.assert_array_equal(by_table, expected)


def test_a_number_that_is_in_no_row_is_told_in_one_line(run_ranks):
    def on_rank(comm):
        within(Lookup)(comm, 11).to_owners(np.array([3, -1]))

    with pytest.raises(ValueError, match=r"must be from 0 to 10\. Received: numbers from -1 to 3"):
        run_ranks(1, on_rank)


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("kind", [Columns, Rows, Summands, Lookup])
def test_a_step_sends_what_the_docstring_says(run_ranks, kind, size):
    """4 rows of 24 numbers in and 36 out, of float32: a = 384 bytes, b = 576. Of a table, 4 rows of 36 numbers."""
    a, b = 4 * 24 * 4, 4 * 36 * 4

    def on_rank(comm):
        trip, sent = within(kind)(comm, {Columns: 36, Rows: 24, Summands: 8, Lookup: 12}[kind]), []

        def counted(act, rows):
            before = comm.sent.bytes, comm.sent.messages
            result = act(rows)
            sent.append((comm.sent.bytes - before[0], comm.sent.messages - before[1]))
            return result

        arrived = counted(trip.to_owners, np.arange(4) if kind is Lookup else np.zeros((4, 24), "float32"))
        counted(trip.to_workers, np.zeros((len(arrived), 36 // size if kind is Columns else 36), "float32"))
        counted(trip.gradients_to_owners, np.zeros((4, 36), "float32"))
        if kind is not Lookup:
            counted(trip.gradients_to_workers, np.zeros_like(arrived))
        return sent

    far, nothing = size - 1, (0, 0)
    sum_in, sum_out = (2 * far * a // size, 2 * far), (2 * far * b // size, 2 * far)
    passes = {
        Columns: [nothing, (far * b // size, far), nothing, sum_in],
        Rows: [nothing, sum_out, nothing, (far * a // size, far)],
        Summands: [nothing, sum_out, nothing, sum_in],
        Lookup: [nothing, sum_out, nothing],
    }[kind]
    assert sum(nbytes for nbytes, _ in passes) == within(kind).cost(a, b, size)
    assert sum(nbytes for nbytes, _ in passes[:3]) == within(kind).cost(a, b, size, has_gradient=False)
    assert run_ranks(size, on_rank) == [passes] * size
