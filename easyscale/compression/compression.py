"""The base class of forms in which vectors travel."""

import abc
from typing import ClassVar

import numpy as np

__all__ = ["Compression"]


class Compression(abc.ABC):
    """A form in which float32 vectors travel, and how they are packed and unpacked.

    Ranks sum in float32. What a rank sends it packs, and what it receives it unpacks, so a sum that passes through
    several ranks is rounded at each. What was unpacked packs to the same message again. What is not finite stays so,
    whatever bits a NaN has: by it a step is known to have failed.

    Attributes:
        name: String. By which users know it.
        error: Float. How far, at most, a number is from itself when it was packed and unpacked, as a part of the
            largest in the vector.
    """

    name: ClassVar[str]
    error: ClassVar[float]

    @abc.abstractmethod
    def nbytes(self, length: int) -> int:
        """Return the length of the message, in bytes, for a vector of `length` elements."""

    @abc.abstractmethod
    def pack(self, vector: np.ndarray) -> np.ndarray:
        """Return the message, a vector of bytes, for a float32 vector."""

    @abc.abstractmethod
    def unpack(self, message: np.ndarray, vector: np.ndarray) -> None:
        """Write what a message says to a float32 vector."""
