"""int8: what stands in a message, and how far numbers are off."""

import numpy as np
import pytest

from easyscale import exchange as exchanges
from easyscale.compression import Int8
from easyscale.exchange.compressed import Compressed


def _there_and_back(vector):
    back = np.empty_like(vector)
    Int8().unpack(Int8().pack(vector), back)
    return back


def test_a_message_is_a_scale_for_each_block_and_a_byte_for_each_number():
    vector = np.zeros(600, "float32")
    vector[:3], vector[512:514] = [127, -127, 3], [0.5, -0.25]
    message = Int8().pack(vector)
    assert message.size == Int8().nbytes(600) == 2 * 4 + 600
    np.testing.assert_allclose(message[:8].view("float32"), [1, 0.5 / 127])
    np.testing.assert_array_equal(message[8:].view("int8")[[0, 1, 2, 3, 512, 513]], [127, -127, 3, 0, 127, -64])


@pytest.mark.parametrize("length", [1, 511, 512, 513, 32768, 32769, 100_000])
def test_a_number_is_off_by_a_254th_of_the_largest_of_its_block(length):
    generator = np.random.default_rng(length)
    vector = (generator.normal(size=length) * 10 ** generator.uniform(-6, 6, length)).astype("float32")
    off = np.abs(_there_and_back(vector).astype("float64") - vector)
    for start in range(0, length, 512):
        block = slice(start, start + 512)
        assert off[block].max() <= Int8.error * np.abs(vector[block]).max()


def test_it_is_about_a_quarter_of_what_float32_is():
    assert Int8().nbytes(0) == 0
    assert all(Int8().nbytes(length) <= 0.27 * 4 * length for length in (512, 65_536, 25_000_000, 999_999))


@pytest.mark.parametrize("value", [0.0, 1e-45, 1e-38, 3e38, -3e38])
def test_blocks_of_zeros_and_of_the_ends_of_float32(value):
    vector = np.full(512, value, "float32")
    np.testing.assert_allclose(_there_and_back(vector), vector, rtol=Int8.error, atol=6e-39)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_shows_in_its_block_and_in_no_other(value):
    vector = np.ones(1536, "float32")
    vector[600] = value
    back = _there_and_back(vector)
    assert not np.isfinite(back[512:1024]).any()
    np.testing.assert_allclose(back[:512], 1, rtol=1e-6)
    np.testing.assert_allclose(back[1024:], 1, rtol=1e-6)


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_a_ring_is_off_by_a_rounding_of_each_sum_on_the_way(run_ranks, size):
    vectors = np.random.default_rng(size).uniform(-1, 1, (size, 5000)).astype("float32")

    def on_rank(comm):
        buffer = vectors[comm.rank].copy()
        Compressed(exchanges.get("ring", comm), Int8()).allreduce(buffer)
        return buffer, comm.sent.bytes

    sums = run_ranks(size, on_rank)
    # The sum of k ranks, which is k at most, is packed for k = 1, ..., P - 1, and at last the whole.
    bound = Int8.error * sum(range(1, size + 1)) * (1 + Int8.error) ** size
    for buffer, sent in sums:
        assert np.abs(buffer - vectors.sum(axis=0)).max() <= bound
        np.testing.assert_array_equal(buffer, sums[0][0])
        assert sent <= 0.27 * 2 * 4 * 5000 * (size - 1) / size
