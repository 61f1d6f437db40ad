"""One byte for each element, and a scale for each block of them."""

import numpy as np

from easyscale.compression.blocks import Blocks
from easyscale.compression.packing import Packing

__all__ = ["Int8"]

_BLOCKS = Blocks(512)
_LEVELS = 127  # above zero, and as many below
_LEAST = np.finfo(np.float32).tiny  # of scales: some threads flush smaller numbers to zero


class Int8(Packing):
    """Numbers as whole multiples of a step, from -127 to 127, with one step size for each block of 512.

        step = max |x| / 127                    of a block, a float32
        q = round(x / step)                     an int8

    A vector of `S` bytes travels as `S / 4 + S / 512`, 0.252 of it. A number is off by half a step at most: by 1/254 of
    the largest of its block, or by 6e-39. If one number of a block is not finite, all become so.

    Example:

    >>> form, back = Int8(), np.zeros(3, "float32")
    >>> form.unpack(form.pack(np.array([127, -1.4, 2.6], "float32")), back)
    >>> back
    array([127.,  -1.,   3.], dtype=float32)

    References: Dettmers, "8-bit approximations for parallelism in deep learning", 2016; Alistarh et al., "QSGD:
    communication-efficient SGD via gradient quantization and encoding", 2017, section 4, for the blocks.
    """

    name = "int8"
    error = 1 / 254 + 2.0**-22  # plus the rounding of float32

    def nbytes(self, length: int) -> int:
        return length + 4 * _BLOCKS.count(length)

    def pack(self, vector: np.ndarray) -> np.ndarray:
        message = np.empty(self.nbytes(vector.size), np.uint8)
        (scales, levels), work = _BLOCKS.scales(message, vector.size), _BLOCKS.work(vector.size)
        levels = levels.view(np.int8)
        with np.errstate(invalid="ignore"):
            for blocks, part in _BLOCKS.of(vector.size):
                rows, scale = _BLOCKS.rows(vector[part]), scales[blocks]
                steps = work[: rows.size].reshape(rows.shape)
                np.abs(rows, out=steps)
                np.maximum.reduce(steps, axis=1, out=scale)
                scale *= np.float32(1 / _LEVELS)
                np.maximum(scale, _LEAST, out=scale)
                np.divide(rows, scale[:, None], out=steps)
                np.rint(steps, out=steps)
                np.copyto(_BLOCKS.rows(levels[part]), steps, casting="unsafe")
        return message

    def unpack(self, message: np.ndarray, vector: np.ndarray) -> None:
        scales, levels = _BLOCKS.scales(message, vector.size)
        levels = levels.view(np.int8)
        with np.errstate(invalid="ignore"):
            for blocks, part in _BLOCKS.of(vector.size):
                rows = _BLOCKS.rows(vector[part])
                np.copyto(rows, _BLOCKS.rows(levels[part]))
                rows *= scales[blocks][:, None]
