"""Checks of the exchanges between real processes."""

import contextlib
import importlib
import itertools
import threading

import ml_dtypes
import numpy as np
import pytest

import easyscale
from easyscale import communicator
from easyscale import exchange as exchanges
from easyscale.exchange.vectors import capacity

comm = communicator.get()
DTYPES = ["float32", "float64", "float16", ml_dtypes.bfloat16, "int32", "int64"]
LENGTHS = [0, 1, 7, 1000, 300_001]


def _of_all_ranks(buffer):
    return comm.all_gather_rows(buffer.view(np.uint8))


def _values(length, dtype):
    return (np.arange(length) % 29 + comm.rank).astype(dtype)  # exact in every dtype; no segment is a multiple of 29


def _sums(length):
    return np.arange(length) % 29 * comm.size + comm.size * (comm.size - 1) / 2


@contextlib.contextmanager
def _short_segments(name):
    module = importlib.import_module(f"easyscale.exchange.{name}")
    before, module.SEGMENT_BYTES = module.SEGMENT_BYTES, 32
    try:
        yield
    finally:
        module.SEGMENT_BYTES = before


def check_allreduce_sums_every_rank():
    for name, length, dtype in itertools.product(exchanges.available(), LENGTHS, DTYPES):
        buffer = _values(length, dtype)
        exchanges.get(name, comm).allreduce(buffer)
        np.testing.assert_array_equal(buffer.astype("float64"), _sums(length), f"{name} {length} {dtype}")


def check_reduce_leaves_the_sum_at_the_owner_and_gather_brings_it_back():
    for name, length, dtype in itertools.product(exchanges.available(), LENGTHS, ["float32", "float16"]):
        exchange, buffer = exchanges.get(name, comm), _values(length, dtype)
        own = exchange.owned(length)
        exchange.reduce(buffer)
        np.testing.assert_array_equal(buffer[own], _sums(length)[own], f"{name} {length} {dtype}")
        exchange.gather(buffer)
        np.testing.assert_array_equal(buffer, _sums(length), f"{name} {length} {dtype}")


def check_short_segments_make_the_same_sum():
    for name, length in itertools.product(["ring", "tree"], [0, 1, 7, 8, 9, 31, 32, 33, 500]):
        buffer = _values(length, "float32")
        with _short_segments(name):
            exchanges.get(name, comm).allreduce(buffer)
        np.testing.assert_array_equal(buffer, _sums(length), f"{name} {length}")


def check_a_vector_longer_than_a_message_makes_the_same_sum():
    """As one of more than 2 GiB, whose length is no C int, with the limit lowered."""
    from easyscale.communicator.mpi import transfer

    before, transfer.MESSAGE_LIMIT = transfer.MESSAGE_LIMIT, 64
    try:
        for name, length, dtype in itertools.product(exchanges.available(), LENGTHS[:-1], ["float64", "float16"]):
            exchange, buffer, again = exchanges.get(name, comm), _values(length, dtype), _values(length, dtype)
            exchange.allreduce(buffer)
            exchange.reduce(again)
            exchange.gather(again)
            np.testing.assert_array_equal(buffer, _sums(length), f"{name} {length} {dtype}")
            np.testing.assert_array_equal(again, _sums(length), f"{name} {length} {dtype}")
    finally:
        transfer.MESSAGE_LIMIT = before


def check_all_ranks_get_the_same_bits():
    for name, dtype in itertools.product(exchanges.available(), ["float32", "float64", "float16"]):
        buffer = np.random.default_rng(comm.rank).normal(size=100_003).astype(dtype)
        exchanges.get(name, comm).allreduce(buffer)
        rows = _of_all_ranks(buffer)
        assert (rows == rows[0]).all(), name


def check_processes_send_what_the_cost_says():
    for name in exchanges.available():
        exchange = exchanges.get(name, comm)
        if (cost := exchange.cost(comm.size, 1920)) is None:
            continue
        buffer = exchange.allocate(480)
        messages, nbytes = comm.sent.messages, comm.sent.bytes
        exchange.allreduce(buffer)
        sent = comm.all_gather_object([comm.sent.messages - messages, comm.sent.bytes - nbytes])
        busiest = max(messages for messages, _ in sent), max(nbytes for _, nbytes in sent)
        assert busiest == (cost.messages, cost.bytes), name


def check_allocated_memory_is_aligned_and_sums():
    for name, dtype in itertools.product(exchanges.available(), DTYPES):
        exchange = exchanges.get(name, comm)
        buffer = exchange.allocate(1001, dtype)
        assert buffer.ctypes.data % 64 == 0
        assert not buffer.any()
        buffer[:] = 1
        exchange.allreduce(buffer)
        assert (buffer == comm.size).all(), name


def check_exchanges_run_on_any_thread():
    for name in exchanges.available():
        buffer, exchange = _values(10_000, "float32"), exchanges.get(name, comm)
        thread = threading.Thread(target=exchange.allreduce, args=(buffer,))
        thread.start()
        thread.join()
        np.testing.assert_array_equal(buffer, _sums(10_000), name)


def check_windows_for_which_there_is_no_room_are_an_error_on_every_rank():
    from easyscale.communicator.mpi import memory

    if comm.size == 1:
        return
    before, memory._room = memory._room, lambda: 3_000_000
    try:
        exchange = exchanges.get("shared_memory", comm)
        with pytest.raises(easyscale.SharedMemoryError) as raised:
            exchange.allocate(1_500_000)  # 6 MB for each rank
    finally:
        memory._room = before
    message = str(raised.value)
    needed = capacity(6_000_000) * comm.size / 1e6
    assert f"Received: {needed:.0f} MB to share, 3 MB free of " in message and "\n" not in message
    assert "--shm-size" in message and "choose the exchange 'ring'" in message
    vector = exchange.allocate(1_500_000)
    vector[:] = 1
    exchange.allreduce(vector)
    assert (vector == comm.size).all()
