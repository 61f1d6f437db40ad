"""one_bit: what stands in a message, and what comes back."""

import numpy as np
import pytest

from easyscale.compression import OneBit


def _there_and_back(vector):
    back = np.full_like(vector, np.nan)
    OneBit().unpack(OneBit().pack(vector), back)
    return back


def test_a_message_is_a_scale_for_each_block_and_a_bit_for_each_number():
    vector = np.zeros(1030, "float32")
    vector[:3], vector[1024:] = [1024, -2048, 0], [1, -2, 3, -4, 0, 8]
    message = OneBit().pack(vector)
    assert message.size == OneBit().nbytes(1030) == 2 * 4 + 129
    np.testing.assert_allclose(message[:8].view("float32"), [3, 3])
    assert (message[8], message[-1]) == (0b10111111, 0b10101100)


@pytest.mark.parametrize("length", [1, 7, 8, 1023, 1025, 32_768, 40_001])
def test_a_number_comes_back_as_the_mean_of_its_block_with_its_sign(length):
    vector = np.random.default_rng(length).normal(size=length).astype("float32")
    back = _there_and_back(vector)
    np.testing.assert_array_equal(back > 0, vector >= 0)
    for start in range(0, length, 1024):
        block = slice(start, start + 1024)
        np.testing.assert_allclose(np.abs(back[block]), np.abs(vector[block]).mean(), rtol=1e-5)


def test_it_is_a_31st_of_what_float32_is():
    assert OneBit().nbytes(0) == 0
    assert all(OneBit().nbytes(length) <= 4 * length / 31 + 8 for length in (1, 1024, 65_536, 999_999))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_shows_in_its_block_and_in_no_other(value):
    vector = np.ones(3072, "float32")
    vector[1500] = value
    back = _there_and_back(vector)
    assert not np.isfinite(back[1024:2048]).any()
    np.testing.assert_array_equal(back[:1024], 1)
    np.testing.assert_array_equal(back[2048:], 1)


def test_zeros_come_back_as_such():
    assert not _there_and_back(np.zeros(100, "float32")).any()
