"""One bit for each element, and a scale for each block of them."""

import numpy as np

from easyscale.compression.blocks import Blocks
from easyscale.compression.packing import Packing

__all__ = ["OneBit"]

_BLOCKS = Blocks(1024)


class OneBit(Packing):
    """The sign of each number, and the mean magnitude of each block of 1,024.

        scale = mean |x|                        of a block, a float32
        q = scale if x >= 0 else -scale         a bit

    A vector of `S` bytes travels as `S / 32 + S / 1024`, 1/31 of it. Most of a gradient is left out: it stays on the
    rank as its residual and is sent later; see `ErrorFeedback`. If one number of a block is not finite, all become so.

    Example:

    >>> form, back = OneBit(), np.zeros(4, "float32")
    >>> form.unpack(form.pack(np.array([1, -2, 3, -2], "float32")), back)
    >>> back
    array([ 2., -2.,  2., -2.], dtype=float32)

    References: Seide et al., "1-bit stochastic gradient descent and its application to data-parallel distributed
    training of speech DNNs", 2014; Karimireddy et al., "Error feedback fixes SignSGD and other gradient compression
    schemes", 2019, for the scale; Zheng et al., "Communication-efficient distributed blockwise momentum SGD with
    error-feedback", 2019, for the blocks.
    """

    name = "one_bit"
    error = 1.0
    keeps_error = True

    def nbytes(self, length: int) -> int:
        return 4 * _BLOCKS.count(length) + -(-length // 8)

    def pack(self, vector: np.ndarray) -> np.ndarray:
        message = np.empty(self.nbytes(vector.size), np.uint8)
        (scales, bits), work = _BLOCKS.scales(message, vector.size), _BLOCKS.work(vector.size)
        for blocks, part in _BLOCKS.of(vector.size):
            numbers = vector[part]
            sizes = np.abs(numbers, out=work[: numbers.size])
            np.mean(_BLOCKS.rows(sizes), axis=1, out=scales[blocks])
            bits[_bytes_of(part)] = np.packbits(numbers >= 0)
        return message

    def unpack(self, message: np.ndarray, vector: np.ndarray) -> None:
        scales, bits = _BLOCKS.scales(message, vector.size)
        for blocks, part in _BLOCKS.of(vector.size):
            numbers = vector[part]
            np.copyto(numbers, np.unpackbits(bits[_bytes_of(part)], count=numbers.size))
            numbers -= 0.5
            rows = _BLOCKS.rows(numbers)
            with np.errstate(over="ignore"):
                rows *= 2 * scales[blocks][:, None]


def _bytes_of(part: slice) -> slice:
    """Return the slice of bytes that hold the bits of these elements."""
    return slice(part.start // 8, -(-part.stop // 8))
