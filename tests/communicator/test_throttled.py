"""A slower network than there is: what arrives, when it may at the earliest, and that sums are the same."""

import time

import numpy as np
import pytest

from easyscale import exchange as exchanges
from easyscale.communicator.throttled import Line, Throttled
from easyscale.errors import SharedMemoryError

SLOW = {"bandwidth": 1e6}  # bytes per second, so that 100,000 take 0.1 s


def _waited(run_ranks, ranks, on_rank, **line):
    """The seconds that each rank takes for `on_rank(communicator)`."""

    def timed(comm):
        throttled = Throttled(comm, Line(**line))
        comm.barrier()
        start = time.monotonic()
        on_rank(throttled)
        return time.monotonic() - start

    return run_ranks(ranks, timed)


def test_a_message_arrives_when_it_has_left_the_line_and_its_latency_is_over(run_ranks):
    def on_rank(comm):
        if comm.rank == 0:
            comm.send(np.arange(100_000, dtype=np.uint8), 1)
        else:
            found = np.zeros(100_000, np.uint8)
            comm.receive(found, 0)
            np.testing.assert_array_equal(found, np.arange(100_000, dtype=np.uint8))

    assert min(_waited(run_ranks, 2, on_rank, **SLOW)) >= 0.1
    assert min(_waited(run_ranks, 2, on_rank, latency=0.05)) >= 0.05
    assert min(_waited(run_ranks, 2, on_rank, **SLOW, latency=0.05)) >= 0.15


def test_messages_leave_one_behind_the_other_whoever_they_are_for_and_stay_in_order(run_ranks):
    def on_rank(comm):
        if comm.rank == 0:
            sent = [comm.isend(np.full(50_000, number, np.uint8), to) for number in (1, 2) for to in (1, 2)]
            [request.wait() for request in sent]
        else:
            for number in (1, 2):
                found = np.zeros(50_000, np.uint8)
                comm.receive(found, 0)
                assert (found == number).all()

    assert _waited(run_ranks, 3, on_rank, **SLOW)[0] >= 0.2


@pytest.mark.parametrize("name", ["ring", "tree", "hierarchical", "mpi", "parameter_server"])
def test_sums_are_the_same_bits(run_ranks, name):
    def on_rank(comm):
        slow = Throttled(comm, Line(latency=0.001))
        own = np.random.default_rng(comm.rank).normal(size=1001).astype("float32")
        sums = own.copy(), own.copy()
        # Each rank is a host of its own, so the exchange beside it is one between hosts, too.
        exchanges.get(name, slow).allreduce(sums[0])
        exchanges.get(name, Throttled(comm, Line())).allreduce(sums[1])
        return sums

    for slow, fast in run_ranks(3, on_rank):
        np.testing.assert_array_equal(slow, fast)


def test_what_is_sent_is_counted_once_and_a_duplicate_uses_the_same_line(run_ranks):
    def on_rank(comm):
        slow = Throttled(comm, Line(**SLOW))
        other = slow.duplicate()
        comm.barrier()
        before, start = slow.sent.bytes, time.monotonic()
        found = np.zeros(50_000, np.uint8)
        requests = [each.isend(np.ones(50_000, np.uint8), 1 - comm.rank) for each in (slow, other)]
        for each in (slow, other):
            each.receive(found, 1 - comm.rank)
        [request.wait() for request in requests]
        return slow.sent.bytes - before, time.monotonic() - start

    for nbytes, seconds in run_ranks(2, on_rank):
        assert nbytes == 100_000 and seconds >= 0.1


def test_ranks_are_on_hosts_of_their_own(run_ranks):
    def on_rank(comm):
        slow = Throttled(comm, Line(1.25e7, 0.02))
        assert (slow.nodes, slow.local_rank, slow.local_size) == ([[0], [1], [2]], 0, 1)
        assert slow.library == "threads of one process as over 100 Mbit/s, 20 ms"
        with pytest.raises(SharedMemoryError, match="must be able to share memory"):
            slow.allocate_shared(8)

    run_ranks(3, on_rank)


def test_what_goes_wrong_is_told_to_who_waits(run_ranks):
    def on_rank(comm):
        if comm.rank == 0:
            with pytest.raises(ZeroDivisionError):
                Line().send(1, lambda: 1 / 0).wait()

    run_ranks(1, on_rank)
