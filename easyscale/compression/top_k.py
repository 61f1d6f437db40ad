"""Top-k sparsification: the largest numbers of a gradient, and their positions."""

import numpy as np

from easyscale.compression.packing import Packing
from easyscale.compression.share import check_share, count_of

__all__ = ["TopK"]

_SHORT = 1 << 16  # elements of the longest vector with indices of two bytes


class TopK(Packing):
    """The `share` of a message's numbers with the largest magnitude, each with its index; the others are zero.

    From each message `k = share * n` numbers travel: the values as float32, and their indices as two bytes, or as four
    if a message has more than 65,536 numbers. A ring's messages never do, so a vector of `S` bytes travels as
    `1.5 * share * S`: with 0.01, as 1/67. The other numbers stay on the rank as its residual and are sent when they
    have become large; see `ErrorFeedback`. Around a ring each rank selects again, from the sum that it passes on.

    Args:
        share: Float, above 0, at most 1. Defaults to `0.01`.

    Example:

    >>> form, back = TopK(0.25), np.zeros(8, "float32")
    >>> form.unpack(form.pack(np.array([0, 3, -1, 2, -7, 0, 1, 1], "float32")), back)
    >>> back
    array([ 0.,  3.,  0.,  0., -7.,  0.,  0.,  0.], dtype=float32)

    References: Aji and Heafield, "Sparse communication for distributed gradient descent", 2017; Lin et al., "Deep
    gradient compression", 2018; for the residual Stich et al., "Sparsified SGD with memory", 2018.
    """

    name = "top_k"
    error = 1.0
    keeps_error = True

    def __init__(self, share: float = 0.01):
        self.share = check_share(share)

    def nbytes(self, length: int) -> int:
        return count_of(self.share, length) * (4 + _index_type(length).itemsize)

    def pack(self, vector: np.ndarray) -> np.ndarray:
        count, message = count_of(self.share, vector.size), np.empty(self.nbytes(vector.size), np.uint8)
        if not count:
            return message
        chosen = np.argpartition(np.abs(vector), vector.size - count)[vector.size - count :]  # NaN counts as largest
        chosen.sort()
        np.take(vector, chosen, out=message[: 4 * count].view(np.float32), mode="clip")  # the default would copy `out`
        message[4 * count :].view(_index_type(vector.size))[:] = chosen
        return message

    def unpack(self, message: np.ndarray, vector: np.ndarray) -> None:
        count = count_of(self.share, vector.size)
        vector[:] = 0
        vector[message[4 * count :].view(_index_type(vector.size))] = message[: 4 * count].view(np.float32)


def _index_type(length: int) -> np.dtype:
    return np.dtype(np.uint16 if length <= _SHORT else np.uint32)
