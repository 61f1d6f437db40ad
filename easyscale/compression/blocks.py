"""Vectors divided into blocks of equal length, each of which has a scale."""

from collections.abc import Iterator

import numpy as np

__all__ = ["Blocks"]

_PART = 1 << 16  # elements: as float32 they stay in the second-level cache from one pass to the next


class Blocks:
    """Division of vectors into blocks, the last of which may be shorter; some blocks are processed at a time.

    Args:
        length: Int. The number of elements of a block.

    Example:

    >>> list(Blocks(100).of(250))
    [(slice(0, 2, None), slice(0, 200, None)), (slice(2, 3, None), slice(200, 250, None))]
    """

    def __init__(self, length: int):
        self._length = length

    def count(self, length: int) -> int:
        """Return the number of blocks of a vector of `length` elements."""
        return -(-length // self._length)

    def scales(self, message: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the scales at the start of a message for a vector of `length` elements, and the rest of it."""
        stop = 4 * self.count(length)
        return message[:stop].view(np.float32), message[stop:]

    def of(self, length: int) -> Iterator[tuple[slice, slice]]:
        """Yield some whole blocks at a time, then the shorter last one: a slice of blocks, and one of elements."""
        whole = length - length % self._length
        for start in range(0, whole, _PART):
            stop = min(start + _PART, whole)
            yield slice(start // self._length, stop // self._length), slice(start, stop)
        if whole < length:
            yield slice(whole // self._length, whole // self._length + 1), slice(whole, length)

    def rows(self, part: np.ndarray) -> np.ndarray:
        """Return elements that `of` has yielded, as rows of one block each, without a copy."""
        return part.reshape(-1, self._length) if part.size % self._length == 0 else part[None]

    @staticmethod
    def work(length: int) -> np.ndarray:
        """Return a work buffer for as many elements as `of` yields at a time."""
        return np.empty(min(length, _PART), np.float32)
