"""Shared memory and nodes: threads that stand for ranks on several nodes, and vectors in windows and in none."""

import gc

import numpy as np
import pytest

from easyscale import DesyncError, communicator
from easyscale import exchange as exchanges
from easyscale.exchange import node_memory

LENGTHS = [1, 7, 1000, 100_003]  # the last two are longer than SHORT_BYTES in float64
NODES = [[1, 1], [2, 2], [3, 1], [1, 2, 3], [2, 2, 2, 2]]


@pytest.mark.parametrize("nodes", NODES, ids=str)
@pytest.mark.parametrize("name", ["hierarchical", "hierarchical:tree"])
@pytest.mark.parametrize("length", LENGTHS)
def test_nodes_of_different_sizes_sum_every_rank(nodes, name, length):
    def on_rank(comm):
        exchange = exchanges.get(name, comm)
        buffer = np.arange(length, dtype="float64") + comm.rank
        exchange.allreduce(buffer)
        again = np.arange(length, dtype="float64") + comm.rank
        exchange.reduce(again)
        own = exchange.owned(length)
        np.testing.assert_array_equal(again[own], buffer[own])
        exchange.gather(again)
        np.testing.assert_array_equal(again, buffer)
        return buffer, own

    size = sum(nodes)
    results = communicator.run_ranks(size, on_rank, nodes=nodes)
    for buffer, _ in results:
        np.testing.assert_array_equal(buffer, size * np.arange(length) + size * (size - 1) / 2)
    filled = sorted((own.start, own.stop) for _, own in results if own.start < own.stop)
    assert [start for start, _ in filled] + [length] == [0] + [stop for _, stop in filled]


@pytest.mark.parametrize("nodes", [[2, 2], [4, 4], [2, 2, 2]], ids=str)
def test_between_nodes_each_rank_sends_only_its_lane(nodes):
    nbytes, lanes, count = 8 * 4800, nodes[0], len(nodes)

    def on_rank(comm):
        exchanges.get("hierarchical", comm).allreduce(np.ones(4800))
        return comm.sent.messages, comm.sent.bytes

    expected = 2 * (count - 1), 2 * (nbytes // lanes) * (count - 1) // count
    assert communicator.run_ranks(sum(nodes), on_rank, nodes=nodes) == [expected] * sum(nodes)


def test_auto_follows_the_nodes():
    def name(comm):
        return exchanges.get("auto", comm).name

    assert set(communicator.run_ranks(3, name)) == {"shared_memory"}
    assert set(communicator.run_ranks(3, name, nodes=[2, 1])) == {"hierarchical"}


def test_shared_memory_over_nodes_is_refused():
    with pytest.raises(ValueError, match="on one node for the exchange 'shared_memory'. Received: 2 nodes. Use 'hier"):
        communicator.run_ranks(2, lambda comm: exchanges.get("shared_memory", comm), nodes=[1, 1])


@pytest.mark.parametrize("name", ["shared_memory", "hierarchical"])
@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("length", LENGTHS)
def test_vectors_in_windows_are_summed_where_they_are(run_ranks, name, size, length):
    def on_rank(comm):
        exchange = exchanges.get(name, comm)
        buffer, part = exchange.allocate(length, "float64"), exchange.allocate(2 * length, "float64")[length:]
        for vector in (buffer, part):
            vector[:] = np.arange(length) + comm.rank
            exchange.allreduce(vector)
        sums = buffer.copy()
        own = exchange.owned(length)
        buffer[:] = comm.rank
        exchange.reduce(buffer)
        buffer[own] *= 2
        exchange.gather(buffer)
        return sums, part.copy(), buffer.copy()

    for sums, part, doubled in run_ranks(size, on_rank):
        np.testing.assert_array_equal(sums, size * np.arange(length) + size * (size - 1) / 2)
        np.testing.assert_array_equal(part, sums)
        np.testing.assert_array_equal(doubled, np.full(length, size * (size - 1)))


def test_a_vector_in_a_window_on_some_ranks_only_is_summed_as_well(run_ranks):
    def on_rank(comm):
        exchange = exchanges.get("shared_memory", comm)
        window = exchange.allocate(30_000)
        buffer = window if comm.rank == 0 else np.zeros(30_000, "float32")
        buffer[:] = comm.rank
        exchange.allreduce(buffer)
        return buffer.copy()

    for buffer in run_ranks(3, on_rank):
        np.testing.assert_array_equal(buffer, np.full(30_000, 3))


@pytest.mark.parametrize("lengths", [(10, 11), (100, 50_000), (50_000, 50_001)])
def test_different_lengths_are_an_error_on_every_rank(run_ranks, lengths):
    def on_rank(comm):
        with pytest.raises(DesyncError, match="must pass vectors of the same length and dtype") as raised:
            exchanges.get("shared_memory", comm).allreduce(np.zeros(lengths[comm.rank], "float32"))
        return str(raised.value)

    first, second = run_ranks(2, on_rank)
    assert f"{4 * lengths[0]} bytes of float32 on rank 0, {4 * lengths[1]} bytes of float32 on rank 1" in first
    assert f"{4 * lengths[1]} bytes of float32 on rank 1, {4 * lengths[0]} bytes of float32 on rank 0" in second


@pytest.mark.parametrize("length", [10, 50_000])
@pytest.mark.parametrize("dtypes", [("float32", "int32"), ("int64", "float64")])
def test_different_dtypes_of_one_size_are_an_error_on_every_rank(run_ranks, dtypes, length):
    def on_rank(comm):
        with pytest.raises(DesyncError, match="must pass vectors of the same length and dtype") as raised:
            exchanges.get("shared_memory", comm).allreduce(np.ones(length, dtypes[comm.rank]))
        return str(raised.value)

    first, _ = run_ranks(2, on_rank)
    assert f"bytes of {dtypes[0]} on rank 0, " in first
    assert f"bytes of {dtypes[1]} on rank 1. " in first


def test_memory_in_common_is_one_and_written_by_owners(run_ranks):
    def on_rank(comm):
        exchange = exchanges.get("shared_memory", comm)
        vector = exchange.lend(1000, "float64", common=True)
        vector[exchange.owned(1000)] = comm.rank
        exchange.gather(vector)
        return vector.__array_interface__["data"][0], vector.copy()

    (address, values), *others = run_ranks(4, on_rank)
    np.testing.assert_array_equal(values, np.repeat(np.arange(4), 250))
    assert all(other == address for other, _ in others)


def test_memory_is_lent_again_only_when_no_rank_has_it(run_ranks):
    def on_rank(comm):
        exchange = exchanges.get("shared_memory", comm)

        def address(vector):
            return vector.__array_interface__["data"][0]

        first = exchange.lend(20_000, common=True)
        kept = first[5:10] if comm.rank == 1 else None
        addresses = [address(first)]
        del first
        gc.collect()
        second = exchange.lend(20_000, common=True)
        addresses.append(address(second))
        del kept, second
        gc.collect()
        comm.barrier()
        addresses.append(address(exchange.lend(20_000, common=True)))
        return addresses

    for first, second, third in run_ranks(2, on_rank):
        assert first != second
        assert third in (first, second)


def test_ranks_that_write_and_read_the_same_memory_never_meet_in_it(run_ranks):
    """Each round owners write their parts of a vector in common, while slower ranks may still read the last one."""
    rounds, length = 60, 5000

    def on_rank(comm):
        exchange = exchanges.get("shared_memory", comm)
        generator = np.random.default_rng(comm.rank)
        held = []
        for number in range(rounds):
            vector = exchange.lend(length, "float64", common=True)
            vector[exchange.owned(length)] = number
            exchange.gather(vector)
            held.append((number, vector))
            del vector
            while len(held) > generator.integers(1, 4):  # as long as it is held, nobody writes to it
                before, old = held.pop(0)
                assert (old == before).all()
                del old
        return all((vector == number).all() for number, vector in held)

    assert all(run_ranks(3, on_rank))


@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_short_vector_that_was_lent_takes_one_meeting(run_ranks, size):
    def on_rank(comm):
        exchange, memory = exchanges.get("shared_memory", comm), node_memory.NodeMemory.of(comm)
        met = []
        for number in range(4):
            before = memory._meetings.count
            vector = exchange.lend(node_memory.SHORT_BYTES // 4)
            vector[:] = number + comm.rank
            exchange.allreduce(vector)
            assert (vector == size * number + size * (size - 1) / 2).all()
            met.append(memory._meetings.count - before)
            del vector
        return met

    assert run_ranks(size, on_rank) == [[1] * 4] * size


def test_short_vectors_take_turns_without_mixing(run_ranks, monkeypatch):
    monkeypatch.setattr(node_memory, "SHORT_BYTES", 800)

    def on_rank(comm):
        exchange = exchanges.get("shared_memory", comm)
        for number in range(200):
            buffer = np.full(1 + number % 150, number + comm.rank, "float64")  # some short, some not
            exchange.allreduce(buffer)
            assert (buffer == 3 * number + 3).all()

    run_ranks(3, on_rank)
