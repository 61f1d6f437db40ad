"""The vectors that exchanges take: their dtypes, alignment and segments."""

import numpy as np

from easyscale.compression import Packing
from easyscale.compression.half import BF16, FP16
from easyscale.layout.bucket import ALIGNMENT

__all__ = ["DTYPES", "HALF", "aligned", "capacity", "check", "segments"]

# Half types are summed in float32, and travel as they are.
HALF: dict[np.dtype, Packing] = {form.dtype: form for form in (FP16(), BF16())}
DTYPES = (*HALF, *map(np.dtype, ("float32", "float64", "int32", "int64")))


def check(buffer: np.ndarray) -> None:
    """Raise a `TypeError` if an exchange cannot take `buffer`."""
    if not isinstance(buffer, np.ndarray):
        got = type(buffer).__name__
        raise TypeError(f"`buffer` must be a NumPy vector. Received: {got}. It is summed in place")
    if buffer.ndim != 1 or not buffer.flags.c_contiguous:
        got = f"shape {buffer.shape}, strides {buffer.strides}"
        raise TypeError(
            f"`buffer` must be a contiguous vector. Received: {got}. Try `np.ascontiguousarray(array).reshape(-1)`"
        )
    if buffer.dtype not in DTYPES:
        valid = ", ".join(dtype.name for dtype in DTYPES)
        raise TypeError(f"`buffer` must be of one of the dtypes {valid}. Received: {buffer.dtype}")
    if not buffer.flags.writeable:
        raise TypeError("`buffer` must be writeable. Received: a read-only vector. Try `array.copy()`")


def capacity(length: int) -> int:
    """Return `length` rounded up by an eighth at most, so that vectors of similar length use the same memory."""
    step = 1 << max(0, length.bit_length() - 4)
    return -(-length // step) * step


def aligned(length: int, dtype: str | np.dtype) -> np.ndarray:
    """Return a vector of zeros that starts at a multiple of `ALIGNMENT` bytes."""
    dtype = np.dtype(dtype)
    memory = np.zeros(length * dtype.itemsize + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + length * dtype.itemsize].view(dtype)


def segments(vector: np.ndarray, nbytes: int) -> list[np.ndarray]:
    """Cut `vector` into parts of at most `nbytes`; none if it is empty.

    While one part is being summed the next is in transit.
    """
    step = max(1, nbytes // vector.itemsize)
    return [vector[start : start + step] for start in range(0, vector.size, step)]
