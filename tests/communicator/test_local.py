"""Ranks as threads: the order of messages, the rendezvous, and how every kind of failure ends."""

import threading

import numpy as np
import pytest

from easyscale import communicator
from easyscale.communicator import local
from easyscale.errors import DesyncError, PeerError


def test_results_are_in_the_order_of_ranks(run_ranks):
    assert run_ranks(5, lambda comm: comm.rank * 10) == [0, 10, 20, 30, 40]


def test_ranks_are_those_of_one_node(run_ranks):
    def on_rank(comm):
        return comm.size, comm.local_rank == comm.rank, comm.local_size, comm.host

    assert len(set(run_ranks(3, on_rank))) == 1
    size, local_is_rank, local_size, host = run_ranks(3, on_rank)[0]
    assert (size, local_is_rank, local_size) == (3, True, 3)
    assert host


def test_messages_between_two_ranks_arrive_in_the_order_sent(run_ranks):
    def on_rank(comm):
        if comm.rank == 0:
            requests = [comm.isend(np.array([number]), 1) for number in range(10)]
            for request in reversed(requests):
                request.wait()
            return None
        received = np.empty(10, int)
        for number in range(10):
            comm.receive(received[number : number + 1], 0)
        return received.tolist()

    assert run_ranks(2, on_rank)[1] == list(range(10))


def test_receives_posted_first_are_filled_first(run_ranks):
    def on_rank(comm):
        if comm.rank == 0:
            comm.send(np.array([1]), 1)
            comm.send(np.array([2]), 1)
            return None
        first, second = np.zeros(1, int), np.zeros(1, int)
        requests = [comm.ireceive(first, 0), comm.ireceive(second, 0)]
        for request in reversed(requests):
            request.wait()
        return first[0], second[0]

    assert run_ranks(2, on_rank)[1] == (1, 2)


def test_messages_of_different_ranks_do_not_mix(run_ranks):
    def on_rank(comm):
        if comm.rank:
            comm.send(np.array([comm.rank * 1.5]), 0)
            return None
        received = np.zeros(4)
        for rank in (3, 1, 4, 2):
            comm.receive(received[rank - 1 : rank], rank)
        return received.tolist()

    assert run_ranks(5, on_rank)[0] == [1.5, 3.0, 4.5, 6.0]


def test_a_rank_may_send_to_itself(run_ranks):
    def on_rank(comm):
        into = np.zeros(3)
        request = comm.ireceive(into, comm.rank)
        comm.send(np.arange(3.0), comm.rank)
        request.wait()
        return into.tolist()

    assert run_ranks(2, on_rank) == [[0, 1, 2], [0, 1, 2]]
    assert on_rank(communicator.get("local")) == [0, 1, 2]


def test_isend_is_complete_only_when_received_and_reads_the_buffer_then(run_ranks):
    written = threading.Event()

    def on_rank(comm):
        if comm.rank == 1:
            assert written.wait(30)
            into = np.zeros(1)
            comm.receive(into, 0)
            return into[0]
        buffer = np.array([1.0])
        request = comm.isend(buffer, 1)
        done_before = request.done()
        buffer[0] = 2.0  # too early: the buffer still belongs to the communicator
        written.set()
        request.wait()
        return done_before, request.done()

    assert run_ranks(2, on_rank) == [(False, True), 2.0]


def test_waiting_twice_for_a_request_is_the_same_as_once(run_ranks):
    def on_rank(comm):
        buffer = np.array([comm.rank])
        request = comm.ireceive(buffer, 0) if comm.rank else comm.isend(buffer, 1)
        request.wait()
        request.wait()
        return buffer[0]

    assert run_ranks(2, on_rank) == [0, 0]


@pytest.mark.parametrize("sent, expected", [(3, 4), (4, 3)])
def test_a_length_that_the_receiver_does_not_expect_is_a_desync_error_on_both(run_ranks, sent, expected):
    def on_rank(comm):
        with pytest.raises(DesyncError) as raised:
            if comm.rank == 0:
                comm.send(np.zeros(sent, "float32"), 1)
            else:
                comm.receive(np.zeros(expected, "float32"), 0)
        return str(raised.value)

    message = (
        "[rank 1 of 2] a message must have the length its receiver expects. "
        f"Received: {4 * sent} bytes from rank 0, expected {4 * expected}"
    )
    assert run_ranks(2, on_rank) == [message, message]


@pytest.mark.parametrize("buffer", [np.zeros(6)[::2], np.zeros((3, 2)).T], ids=["strided", "transposed"])
def test_a_buffer_that_is_not_contiguous_is_a_type_error(buffer):
    comm = communicator.get("local")
    with pytest.raises(TypeError, match=r"`buffer` must be contiguous\. Received: shape .*ascontiguousarray"):
        comm.ireceive(buffer, 0)
    with pytest.raises(TypeError, match="`buffer` must be contiguous"):
        comm.isend(buffer, 0)


def test_a_failing_rank_ends_the_others_and_is_what_run_ranks_raises(run_ranks):
    ended = {}

    def on_rank(comm):
        if comm.rank == 2:
            raise ZeroDivisionError("on rank 2")
        try:
            comm.receive(np.zeros(1), 2)
        except PeerError as error:
            ended[comm.rank] = str(error)
            raise

    with pytest.raises(ZeroDivisionError, match="on rank 2"):
        run_ranks(4, on_rank)
    assert ended == {rank: f"[rank {rank} of 4] rank 2 failed: waits for 8 bytes from rank 2" for rank in (0, 1, 3)}


def test_the_first_error_is_raised_and_not_those_that_follow_from_it(run_ranks):
    failed = threading.Event()

    def on_rank(comm):
        if comm.rank == 1:
            try:
                raise KeyError("first")
            finally:
                failed.set()
        failed.wait(30)
        comm.barrier()

    with pytest.raises(KeyError, match="first"):
        run_ranks(3, on_rank)


def test_a_deadlock_is_a_timeout_that_names_who_waits_for_what(run_ranks):
    def on_rank(comm):
        comm.receive(np.zeros(2), 1 - comm.rank)

    with pytest.raises(TimeoutError) as raised:
        run_ranks(2, on_rank, timeout=2.0)
    assert str(raised.value) == (
        "ranks wait for each other. rank 0: waits for 16 bytes from rank 1; rank 1: waits for 16 bytes from rank 0"
    )


def test_ranks_that_all_stand_still_for_a_while_are_not_waited_for_until_the_end(run_ranks, monkeypatch):
    monkeypatch.setattr(local, "_STILL_SECONDS", 0.5)

    def on_rank(comm):
        if comm.rank < 2:
            comm.receive(np.zeros(2), 1 - comm.rank)

    with pytest.raises(TimeoutError, match="rank 0: waits for 16 bytes from rank 1; rank 1: waits"):
        run_ranks(3, on_rank, timeout=60.0)


def test_a_message_that_nobody_receives_is_a_timeout_that_names_it(run_ranks):
    def on_rank(comm):
        if comm.rank == 0:
            comm.send(np.zeros(3, np.uint8), 1)

    with pytest.raises(TimeoutError, match=r"rank 0: sends 3 bytes to rank 1$"):
        run_ranks(2, on_rank, timeout=0.5)


def test_a_rank_that_does_not_end_is_named(run_ranks):
    release = threading.Event()
    try:
        with pytest.raises(TimeoutError, match=r"rank 1 did not end within 0\.1 s and waited for no other rank"):
            run_ranks(2, lambda comm: comm.rank and release.wait(60), timeout=0.1)
    finally:
        release.set()
