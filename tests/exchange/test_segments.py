"""Long vectors travel in segments: lengths around the segments' bounds, and segments that do not fit them."""

import importlib

import numpy as np
import pytest

from easyscale import exchange as exchanges
from easyscale.exchange.vectors import segments

SEGMENT = 8  # elements of float32, in 32 bytes


@pytest.fixture(params=["ring", "tree"])
def name(request, monkeypatch):
    """An exchange whose segments are very short."""
    module = importlib.import_module(f"easyscale.exchange.{request.param}")
    monkeypatch.setattr(module, "SEGMENT_BYTES", SEGMENT * 4)
    return request.param


def _near(size):
    """Lengths at, just below and just above where a rank's chunk, or the vector, fills whole segments."""
    whole = {SEGMENT * segments * ranks for segments in (0, 1, 2, 5) for ranks in (1, size)}
    return sorted({max(0, length + by) for length in whole for by in (-size, -1, 0, 1, size)})


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_allreduce_sums_lengths_around_the_bounds_of_segments(run_ranks, name, size):
    random = np.random.default_rng(size)
    lengths = [*_near(size), *random.integers(0, 40 * SEGMENT, size=40).tolist()]
    values = [random.integers(-1000, 1000, size=(size, length)) for length in lengths]

    def on_rank(comm):
        exchange = exchanges.get(name, comm)
        buffers = [value[comm.rank].astype("float32") for value in values]
        for buffer in buffers:
            exchange.allreduce(buffer)
        return buffers

    for buffers in run_ranks(size, on_rank):
        for buffer, value in zip(buffers, values, strict=True):
            np.testing.assert_array_equal(buffer, value.sum(axis=0))


@pytest.mark.parametrize("size", [2, 3, 5])
def test_all_ranks_get_the_same_bits(run_ranks, name, size):
    def on_rank(comm):
        buffer = np.random.default_rng(comm.rank).normal(size=997).astype("float32")
        exchanges.get(name, comm).allreduce(buffer)
        return buffer.tobytes()

    assert len(set(run_ranks(size, on_rank))) == 1


def test_the_ring_sends_a_message_for_each_segment_of_a_chunk(run_ranks, monkeypatch):
    monkeypatch.setattr(importlib.import_module("easyscale.exchange.ring"), "SEGMENT_BYTES", 32)

    def on_rank(comm):
        exchanges.get("ring", comm).allreduce(np.ones(4 * 20, "float32"))  # chunks of 20 elements: 8 + 8 + 4
        return comm.sent.messages, comm.sent.bytes

    assert run_ranks(4, on_rank) == [(2 * 3 * 3, 2 * 3 * 80)] * 4


def test_segments_of_more_than_2_gib_lose_nothing():
    vector = np.broadcast_to(np.float32(1), (2**31 + 5,))  # one element of memory
    parts = segments(vector, 1 << 30)
    assert [part.size for part in parts] == [2**28] * 8 + [5]


def test_segments_cut_a_vector_in_order():
    vector = np.arange(10, dtype="float32")
    assert [part.tolist() for part in segments(vector, 16)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [part.size for part in segments(vector, 40)] == [10]
    assert all(np.shares_memory(part, vector) for part in segments(vector, 16))
    assert segments(vector[:0], 16) == []
    assert [part.size for part in segments(vector[:2], 1)] == [1, 1]  # a segment has at least one element
