"""Checks of the communicator between real processes: the same operations as on threads, and what is MPI's own."""

import contextlib
import itertools
import os
import threading
from unittest import mock

import numpy as np
import pytest

from easyscale import communicator
from easyscale.communicator.mpi import transfer, waiting
from easyscale.communicator.wait import Wait, is_patient, wait_patiently
from easyscale.errors import DesyncError

comm = communicator.get("mpi")
RANK, SIZE = comm.rank, comm.size
RIGHT, LEFT = (RANK + 1) % SIZE, (RANK - 1) % SIZE


@contextlib.contextmanager
def _message_limit(nbytes):
    before, transfer.MESSAGE_LIMIT = transfer.MESSAGE_LIMIT, nbytes
    try:
        yield
    finally:
        transfer.MESSAGE_LIMIT = before


def _expected_sum(length):
    return SIZE * np.arange(length) + SIZE * (SIZE - 1) / 2


def _bounds(length):
    return np.array([0, *(length * rank // SIZE for rank in range(1, SIZE)), length])


def _said_by_mpirun(*names):
    return next(int(os.environ[name]) for name in names if name in os.environ)


def check_it_is_the_world_and_the_same_each_time():
    assert _said_by_mpirun("OMPI_COMM_WORLD_SIZE", "PMI_SIZE") == SIZE
    assert _said_by_mpirun("OMPI_COMM_WORLD_RANK", "PMI_RANK") == RANK
    assert communicator.get("mpi") is comm
    if SIZE > 1:
        assert communicator.get() is comm


def check_ranks_of_this_node_are_counted():
    assert comm.local_rank == _said_by_mpirun("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PMI_RANK")
    assert comm.local_size == _said_by_mpirun("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "PMI_SIZE")
    assert comm.host == os.uname().nodename


def check_a_thread_beside_one_that_computes_gives_its_core_away_as_soon_as_it_waits():
    done_at = {}

    def poll(name, begin=lambda: None):
        begin()
        looks = itertools.count()
        with (
            mock.patch.object(waiting, "_SPIN_SECONDS", 60.0),  # however busy the machine is
            mock.patch.object(waiting.os, "sched_yield") as spun,
            mock.patch.object(waiting.time, "sleep") as slept,
        ):
            comm.poll(lambda: next(looks) == 40, Wait("waits"))
        done_at[name] = bool(spun.call_count), bool(slept.call_count)

    for name, begin in {"busily": lambda: None, "patiently": wait_patiently}.items():
        thread = threading.Thread(target=poll, args=(name, begin))
        thread.start()
        thread.join()
    assert done_at == {"busily": (True, False), "patiently": (False, True)}
    assert not is_patient()


def check_messages_arrive_in_the_order_sent():
    into = np.zeros((20, 3), int)
    arriving = [comm.ireceive(row, LEFT) for row in into]
    leaving = [comm.isend(np.full(3, 100 * RANK + number), RIGHT) for number in range(20)]
    for request in [*reversed(arriving), *reversed(leaving)]:
        request.wait()
    np.testing.assert_array_equal(into[:, 1], 100 * LEFT + np.arange(20))


def check_a_buffer_longer_than_the_limit_travels_as_several_messages():
    for length in (0, 1, 63, 64, 65, 128, 1000):
        with _message_limit(64):
            before = comm.sent.bytes
            into = np.zeros(length, np.uint8)
            arriving = comm.ireceive(into, LEFT)
            comm.send((np.arange(length) % 251 + RANK).astype(np.uint8), RIGHT)
            arriving.wait()
        np.testing.assert_array_equal(into, (np.arange(length) % 251 + LEFT).astype(np.uint8))
        assert comm.sent.bytes - before == length
    with _message_limit(64):
        assert len(transfer.messages(np.zeros(65, np.uint8))) == 2
        assert len(transfer.messages(np.zeros(0))) == 1


def check_broadcast_copies_every_roots_buffer():
    for limit, root in [(limit, root) for limit in (1 << 30, 64) for root in range(SIZE)]:
        with _message_limit(limit):
            buffer = np.arange(77.0) + 1000 * RANK
            comm.broadcast(buffer, root)
        np.testing.assert_array_equal(buffer, np.arange(77.0) + 1000 * root)


def check_all_gather_rows_has_every_row():
    rows = comm.all_gather_rows(np.full((2, 3), RANK, "float32"))
    np.testing.assert_array_equal(rows, np.repeat(np.arange(SIZE), 6).reshape(SIZE, 2, 3))
    columns = np.full((2, 4), RANK)[:, ::2]
    np.testing.assert_array_equal(comm.all_gather_rows(columns), np.repeat(np.arange(SIZE), 4).reshape(SIZE, 2, 2))


def check_all_gather_object_returns_every_ranks_value():
    expected = [{"rank": rank, "name": "é" * rank} for rank in range(SIZE)]
    assert comm.all_gather_object({"rank": RANK, "name": "é" * RANK}) == expected


def check_barrier_returns():
    for _ in range(10):
        comm.barrier()


def check_all_reduce_sums_every_rank():
    for limit in (1 << 30, 64):
        for dtype in ("float32", "float64", "int32", "int64"):
            for length in (0, 1, 7, 1001):
                buffer = (np.arange(length) + RANK).astype(dtype)
                with _message_limit(limit):
                    comm.all_reduce(buffer)
                np.testing.assert_array_equal(buffer, _expected_sum(length), f"{limit} {dtype} {length}")


def check_reduce_scatter_leaves_the_sum_in_every_ranks_part():
    for limit in (1 << 30, 64):
        for dtype in ("float32", "float64", "int32", "int64"):
            for length in (0, 1, 7, 1001):
                buffer, bounds = (np.arange(length) + RANK).astype(dtype), _bounds(length)
                with _message_limit(limit):
                    comm.reduce_scatter(buffer, bounds)
                own = slice(bounds[RANK], bounds[RANK + 1])
                np.testing.assert_array_equal(buffer[own], _expected_sum(length)[own], f"{limit} {dtype} {length}")


def check_all_gather_copies_every_ranks_part():
    for limit in (1 << 30, 64):
        for length in (0, 1, 7, 1001):
            buffer, bounds = np.full(length, -1.0), _bounds(length)
            buffer[bounds[RANK] : bounds[RANK + 1]] = RANK
            with _message_limit(limit):
                comm.all_gather(buffer, bounds)
            np.testing.assert_array_equal(buffer, np.repeat(np.arange(SIZE), np.diff(bounds)), f"{limit} {length}")


def check_a_second_thread_may_call():
    failed = []

    def elsewhere():
        try:
            buffer = np.full(100_000, RANK, "float32")
            comm.all_reduce(buffer)
            assert (buffer == SIZE * (SIZE - 1) / 2).all()
            assert comm.all_gather_object(RANK) == list(range(SIZE))
            into = np.zeros(3)
            arriving = comm.ireceive(into, LEFT)
            comm.send(np.full(3, RANK * 1.0), RIGHT)
            arriving.wait()
            assert (into == LEFT).all()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert not failed, failed
    comm.barrier()


def check_waiting_twice_for_a_request_is_the_same_as_once():
    into = np.zeros(2)
    arriving, leaving = comm.ireceive(into, LEFT), comm.isend(np.full(2, RANK * 1.0), RIGHT)
    for request in (arriving, leaving, arriving, leaving):
        request.wait()
    assert (into == LEFT).all()


def check_a_message_shorter_than_expected_is_a_desync_error():
    leaving = comm.isend(np.zeros(3), RIGHT)
    with pytest.raises(DesyncError, match=r"Received: 24 bytes, expected 40, while this rank waits for rank"):
        comm.receive(np.zeros(5), LEFT)
    leaving.wait()
