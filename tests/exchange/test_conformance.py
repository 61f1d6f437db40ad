"""What every exchange must do, whoever wrote it: on any number of ranks, for every dtype and any length.

The numbers are small integers, which all dtypes hold exactly, with a period of 29: no power of two is a multiple of
it, so a segment in the wrong place shows.
"""

import ml_dtypes
import numpy as np
import pytest

from easyscale import exchange as exchanges
from easyscale.layout.bucket import ALIGNMENT

SIZES = [1, 2, 3, 4, 5, 8]
LENGTHS = [0, 1, 7, 1000, 600_001]  # the last one travels in several segments, also a chunk of it on 8 ranks
NAMES = ["float16", "bfloat16", "float32", "float64", "int32", "int64"]
DTYPES = {name: np.dtype(getattr(ml_dtypes, name, name)) for name in NAMES}

every_exchange = pytest.mark.parametrize("name", exchanges.available())
every_size = pytest.mark.parametrize("size", SIZES)
every_length = pytest.mark.parametrize("length", LENGTHS)
every_dtype = pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)


def _values(rank, length, dtype):
    return (np.arange(length) % 29 + rank).astype(dtype)


def _sums(size, length, dtype="float64"):
    return (np.arange(length) % 29 * size + size * (size - 1) // 2).astype(dtype)


@every_exchange
@every_size
@every_length
@every_dtype
def test_allreduce_sums_every_rank(run_ranks, name, size, length, dtype):
    def on_rank(comm):
        buffer = _values(comm.rank, length, dtype)
        exchanges.get(name, comm).allreduce(buffer)
        return buffer

    expected = _sums(size, length, dtype)
    for buffer in run_ranks(size, on_rank):
        np.testing.assert_array_equal(buffer, expected, "is `owned` what `_reduce` sums, and `_gather` sends?")


@every_exchange
@every_size
@every_length
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_reduce_leaves_the_sum_at_the_owner_and_gather_brings_it_back(run_ranks, name, size, length, dtype):
    def on_rank(comm):
        exchange = exchanges.get(name, comm)
        buffer = _values(comm.rank, length, dtype)
        own = exchange.owned(length)
        exchange.reduce(buffer)
        sums = buffer[own].copy()
        buffer[:] = -1  # what is not the owner's does not matter to `gather`
        buffer[own] = sums * 2
        exchange.gather(buffer)
        return own, sums, buffer

    expected = _sums(size, length, dtype)
    for own, sums, buffer in run_ranks(size, on_rank):
        np.testing.assert_array_equal(sums, expected[own])
        np.testing.assert_array_equal(buffer, expected * 2)


@every_exchange
@every_size
@pytest.mark.parametrize("length", [0, 1, 2, 7, 8, 1000, 2**31 + 3])
def test_owned_ranges_divide_the_vector_exactly(run_ranks, name, size, length):
    ranges = run_ranks(size, lambda comm: exchanges.get(name, comm).owned(length))
    filled = sorted((own.start, own.stop) for own in ranges if own.start < own.stop)
    assert [start for start, _ in filled] + [length] == [0] + [stop for _, stop in filled]
    assert all(0 <= own.start <= own.stop <= length and own.step is None for own in ranges)


@every_exchange
@every_size
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_all_ranks_get_the_same_bits(run_ranks, name, size, dtype):
    def on_rank(comm):
        buffer = np.random.default_rng(comm.rank).normal(size=10_007).astype(dtype)
        exchanges.get(name, comm).allreduce(buffer)
        return buffer.tobytes()

    assert len(set(run_ranks(size, on_rank))) == 1


@every_exchange
@every_size
def test_the_sum_is_as_exact_as_the_dtype(run_ranks, name, size):
    parts = [np.random.default_rng(rank).normal(size=999) for rank in range(size)]

    def on_rank(comm):
        buffer = parts[comm.rank].astype("float32")
        exchanges.get(name, comm).allreduce(buffer)
        return buffer

    exact = sum(part.astype("float32").astype("float64") for part in parts)
    for buffer in run_ranks(size, on_rank):
        np.testing.assert_allclose(buffer, exact, rtol=0, atol=size * 4 * np.finfo("float32").eps)


@pytest.mark.parametrize("name", [name for name in exchanges.with_options() if not exchanges.get(name).passes_sums_on])
@pytest.mark.parametrize("dtype, big", [("float16", 2048), (ml_dtypes.bfloat16, 256)], ids=["float16", "bfloat16"])
def test_half_types_are_summed_in_float32_by_their_owners(run_ranks, name, dtype, big):
    # In the half type big + 1 is big again, so whoever adds the ones to the big number one by one never gets further.
    # 5 ranks, and 5 elements for each of the 5 spans, so that the big number stands first in some order of adding.
    assert np.dtype(dtype).type(big) + np.dtype(dtype).type(1) == big

    def on_rank(comm):
        buffer = np.where(np.arange(25) % 5 == comm.rank, big, 1).astype(dtype)
        exchanges.get(name, comm).allreduce(buffer)
        return buffer.astype("float64")

    for buffer in run_ranks(5, on_rank):
        np.testing.assert_array_equal(buffer, np.full(25, big + 4))


@every_exchange
@every_size
def test_a_second_exchange_of_the_same_memory_is_a_sum_of_its_own(run_ranks, name, size):
    def on_rank(comm):
        exchange = exchanges.get(name, comm)
        buffer = exchange.allocate(33)
        buffer[:] = 1
        for _ in range(3):
            exchange.allreduce(buffer)
        return buffer

    for buffer in run_ranks(size, on_rank):
        np.testing.assert_array_equal(buffer, np.full(33, size**3))


@every_exchange
@pytest.mark.parametrize("length", [0, 1, 1000])
@every_dtype
def test_allocate_returns_aligned_zeros(name, length, dtype):
    exchange = exchanges.get(name)
    kept = [exchange.allocate(length, dtype) for _ in range(5)]
    for vector in kept:
        assert (vector.shape, vector.dtype) == ((length,), dtype)
        assert vector.ctypes.data % ALIGNMENT == 0 or length == 0
        assert not vector.any()
        exchange.allreduce(vector)


@every_exchange
def test_the_class_says_what_it_is(name):
    cls = type(exchanges.get(name))
    assert cls.name == name
    assert repr(exchanges.get(name)) == f"<{cls.__name__} exchange>"
    assert "Reference:" in cls.__doc__, f"the docstring of {cls.__name__} must end with `Reference:` and the paper"
