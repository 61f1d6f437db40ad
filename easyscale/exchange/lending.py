"""Memory that is lent, to TensorFlow for one, and comes back by itself."""

import collections
import weakref
from collections.abc import Callable

import numpy as np

from easyscale.exchange.vectors import capacity

__all__ = ["Lending", "loan"]


class Lending:
    """Vectors that are used again as soon as nobody holds a view of them.

    TensorFlow takes an array that `tf.numpy_function` returns as a tensor without a copy, and drops it some time after
    the tensor's last use. Until then the memory must not be written to.
    """

    def __init__(self) -> None:
        self._free: dict[tuple[int, np.dtype], list[np.ndarray]] = collections.defaultdict(list)

    def lend(self, length: int, dtype: np.dtype, allocate: Callable[[int, np.dtype], np.ndarray]) -> np.ndarray:
        """Return a vector with undefined values. It comes back when no view of it is left.

        Args:
            length: Int. The number of elements. Vectors of nearly one length use the same memory.
            dtype: The dtype of the elements.
            allocate: Function of a length and a dtype that returns a new vector, if none has come back.
        """
        free = self._free[key := (capacity(length), dtype)]
        vector = free.pop() if free else allocate(*key)
        return loan(vector, lambda: free.append(vector))[:length]


def loan(vector: np.ndarray, come_back: Callable[[], None]) -> np.ndarray:
    """Return a view of `vector`; call `come_back()` when neither it nor any view of it is left."""
    if vector.size == 0:
        return vector
    # NumPy lets a view of a view refer to the array that owns the memory. A memoryview in between makes `lent` the
    # array that all views refer to.
    lent = np.frombuffer(vector.view(np.uint8).data, np.uint8)
    weakref.finalize(lent, come_back)
    return lent.view(vector.dtype)
