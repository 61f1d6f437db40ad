"""Half-precision types: two bytes for each element."""

import functools
from typing import ClassVar

import ml_dtypes
import numpy as np

from easyscale.compression.packing import Packing

__all__ = ["BF16", "FP16", "Half"]

_PART = 1 << 15  # elements: intermediate results of so many stay in the second-level cache
_INFINITE = np.float32(65_536)  # the first power of two above float16's range
_EXPONENT, _LEAST = np.array([0xFF << 23, 113 << 23], np.uint32)  # of float32; 2^-14: below it steps are equal
_BITS, _LOST, _HALF = np.array([13 << 23, 13, 16], np.uint32)  # 13 bits of mantissa that float16 lacks
_SIGN, _FIRST = np.array([0x8000, (113 << 10) & 0xFFFF], np.uint16)  # of float16; the offset of its step count


class Half(Packing):
    """Numbers rounded to a half-precision type. A vector of `S` bytes travels as `S / 2`.

    Attributes:
        dtype: The half-precision type.
    """

    dtype: ClassVar[np.dtype]

    def nbytes(self, length: int) -> int:
        return length * self.dtype.itemsize

    def pack(self, vector: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):  # numbers that are too large become infinite
            return vector.astype(self.dtype).view(np.uint8)

    def unpack(self, message: np.ndarray, vector: np.ndarray) -> None:
        vector[:] = message.view(self.dtype)


class FP16(Half):
    """float16: 11 bits of mantissa, numbers up to 65,504.

    Example:

    >>> form, back = FP16(), np.zeros(3, "float32")
    >>> form.unpack(form.pack(np.array([0.1, 1, 70_000], "float32")), back)
    >>> back
    array([0.09997559, 1.        ,        inf], dtype=float32)
    """

    name = "fp16"
    error = 2.0**-11
    dtype = np.dtype(np.float16)

    # NumPy converts float16 one by one, and those below 6e-5, as gradients often are, many times more slowly.

    def pack(self, vector: np.ndarray) -> np.ndarray:
        halves = np.empty(vector.size, np.uint16)
        with np.errstate(over="ignore", invalid="ignore"):  # numbers that are too large become infinite
            for start in range(0, vector.size, _PART):
                part = slice(start, start + _PART)
                _round(vector[part], halves[part])
        return halves.view(np.uint8)

    def unpack(self, message: np.ndarray, vector: np.ndarray) -> None:
        np.take(_floats(), message.view(np.uint16), out=vector, mode="clip")  # "clip" writes to `out` directly


class BF16(Half):
    """bfloat16: 8 bits of mantissa, the range of float32.

    Example:

    >>> form, back = BF16(), np.zeros(3, "float32")
    >>> form.unpack(form.pack(np.array([0.1, 1, 70_000], "float32")), back)
    >>> back.tolist()
    [0.10009765625, 1.0, 70144.0]

    Reference: Kalamkar et al., "A study of BFLOAT16 for deep learning training", 2019.
    """

    name = "bf16"
    error = 2.0**-8
    dtype = np.dtype(ml_dtypes.bfloat16)


def _round(vector: np.ndarray, halves: np.ndarray) -> None:
    """Write float32 numbers as the bits of float16, rounded to nearest, ties to even.

    A float32 sum is rounded to a multiple of its last bit. So adding `2^13` times its own power of two to a number
    rounds it to float16's 11 bits, and the last 16 bits of the sum count float16's steps.
    """
    size = np.abs(vector)
    if np.isnan(size.max()):
        halves.view(np.float16)[:] = vector
        return
    np.minimum(size, _INFINITE, out=size)
    power = size.view(np.uint32) & _EXPONENT
    np.maximum(power, _LEAST, out=power)
    large = power + _BITS
    size += large.view(np.float32)
    power >>= _LOST
    power += size.view(np.uint32)
    np.copyto(halves, power, casting="unsafe")  # the last bits
    np.right_shift(vector.view(np.uint32), _HALF, out=large)
    signs = large.astype(np.uint16)
    signs &= _SIGN
    halves -= _FIRST
    halves += signs


@functools.cache
def _floats() -> np.ndarray:
    """Return a table of all float16 numbers, by their bits, as float32."""
    return np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
