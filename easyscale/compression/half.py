"""Half types: two bytes for each element."""

from typing import ClassVar

import ml_dtypes
import numpy as np

from easyscale.compression.packing import Packing

__all__ = ["BF16", "FP16", "Half"]


class Half(Packing):
    """Each number as the nearest of a half type. A vector of `S` bytes travels as `S / 2`.

    Attributes:
        dtype: The half type.
    """

    dtype: ClassVar[np.dtype]

    def nbytes(self, length: int) -> int:
        return length * self.dtype.itemsize

    def pack(self, vector: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):  # what is too large is infinite
            return vector.astype(self.dtype).view(np.uint8)

    def unpack(self, message: np.ndarray, vector: np.ndarray) -> None:
        vector[:] = message.view(self.dtype)


class FP16(Half):
    """float16: 11 bits of mantissa, and none beyond 65,504.

    Example:

    >>> form, back = FP16(), np.zeros(3, "float32")
    >>> form.unpack(form.pack(np.array([0.1, 1, 70_000], "float32")), back)
    >>> back
    array([0.09997559, 1.        ,        inf], dtype=float32)
    """

    name = "fp16"
    error = 2.0**-11
    dtype = np.dtype(np.float16)


class BF16(Half):
    """bfloat16: 8 bits of mantissa, and as large as float32 has them.

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
