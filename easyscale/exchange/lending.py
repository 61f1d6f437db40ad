"""A pool of memory that is lent, for example to TensorFlow, and returns when nothing refers to it any more."""

import collections
import weakref
from collections.abc import Callable

import numpy as np

from easyscale.exchange.vectors import capacity

__all__ = ["Lending", "loan"]


class Lending:
    """A pool of vectors that are used again as soon as nobody holds a view of them.

    TensorFlow takes an array that `tf.numpy_function` returns as a tensor without a copy, and drops it some time after
    the tensor's last use. Until then the memory must not be written to.
    """

    def __init__(self) -> None:
        self._free: dict[tuple[int, np.dtype], list[np.ndarray]] = collections.defaultdict(list)

    def lend(self, length: int, dtype: np.dtype, allocate: Callable[[int, np.dtype], np.ndarray]) -> np.ndarray:
        """Return a vector with undefined values. It returns to the pool when no view of it is left.

        Args:
            length: Int. The number of elements. Vectors of similar length use the same memory.
            dtype: The dtype of the elements.
            allocate: Function. Takes a length and a dtype, returns a new vector. Called if the pool has none.
        """
        free = self._free[key := (capacity(length), dtype)]
        vector = free.pop() if free else allocate(*key)
        return loan(vector, lambda: free.append(vector))[:length]


def loan(vector: np.ndarray, come_back: Callable[[], None]) -> np.ndarray:
    """Return a view of `vector`; call `come_back()` when neither it nor any view of it is left."""
    if vector.size == 0:
        return vector
    # In NumPy a view of a view refers to the array that owns the memory. A memoryview in between makes `lent` the array
    # that all views refer to.
    lent = np.frombuffer(vector.view(np.uint8).data, np.uint8)
    weakref.finalize(lent, come_back)
    return lent.view(vector.dtype)
