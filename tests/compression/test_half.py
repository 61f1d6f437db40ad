"""float16 by arithmetic of vectors: the bits that NumPy's own conversion has."""

import numpy as np

from easyscale.compression import FP16

ALL = np.arange(1 << 16, dtype=np.uint16).view(np.float16)


def _numbers():
    """Each float16 as a float32, what is halfway between two, and their neighbours; and float32s of any bits."""
    floats = ALL.astype("float32")
    sorted_ = np.unique(floats[np.isfinite(floats)])
    beyond = np.float32(65_536)  # between it and the largest float16 is where infinity begins
    halfway = (np.append(sorted_[1:], beyond) + sorted_) / 2
    drawn = np.random.default_rng(0).integers(0, 1 << 32, 300_000, dtype=np.uint32).view("float32")
    return np.concatenate([floats, halfway, np.nextafter(halfway, -beyond), np.nextafter(halfway, beyond), drawn])


def test_numbers_are_rounded_as_numpy_rounds_them():
    numbers = _numbers()
    numbers = numbers[~np.isnan(numbers)]
    with np.errstate(over="ignore"):
        expected = numbers.astype(np.float16)
    np.testing.assert_array_equal(FP16().pack(numbers).view(np.uint16), expected.view(np.uint16))


def test_a_nan_stays_one_and_others_beside_it_what_they_are():
    numbers, back = _numbers(), np.empty(len(_numbers()), "float32")
    FP16().unpack(FP16().pack(numbers), back)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(back, numbers.astype(np.float16).astype("float32"))


def test_each_float16_comes_back_as_it_is():
    back = np.empty(len(ALL), "float32")
    FP16().unpack(ALL.view(np.uint8), back)
    np.testing.assert_array_equal(back, ALL.astype("float32"))
