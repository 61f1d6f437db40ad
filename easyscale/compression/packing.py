"""Forms in which each message is packed by who sends it, and unpacked by who gets it."""

import abc
from typing import Any, ClassVar

import numpy as np

from easyscale.compression.compression import Compression, StepOfForm, Way
from easyscale.compression.packed_messages import LeftOut, PackedMessages

__all__ = ["Packing"]


class Packing(Compression):
    """A form of messages. Three methods make one: `nbytes`, `pack` and `unpack`.

    Ranks sum in float32. What a rank sends it packs, and what it receives it unpacks, so a sum that passes through
    several ranks, as around a ring, is packed by each of them; on the way back who passes it on sends the message that
    has come. What ranks of a node read in common memory is not sent, and not packed.

    What a message leaves out stays with the rank that has packed it: of its own numbers where they go straight to their
    owner, as with `parameter_server`; of the sum of some ranks where sums are passed on, as around a ring; and of the
    whole sum of what it owns, which goes back to all. So nothing is lost, and nothing counts twice.

    Attributes:
        error: Float. How far, at most, a number is from itself when it was packed and unpacked, as a part of the
            largest in the vector.

    Example:

    >>> class Signs(Packing):
    ...     error = 2.0  # and `name = "signs"`, by which others know it
    ...
    ...     def nbytes(self, length):
    ...         return length
    ...
    ...     def pack(self, vector):
    ...         return np.sign(vector).astype("int8").view("uint8")
    ...
    ...     def unpack(self, message, vector):
    ...         vector[:] = message.view("int8")
    >>> Signs().pack(np.array([3, 0, 7], "float32"))
    array([1, 0, 1], dtype=uint8)
    """

    error: ClassVar[float]

    @abc.abstractmethod
    def nbytes(self, length: int) -> int:
        """Return the length of the message, in bytes, for a vector of `length` elements."""

    @abc.abstractmethod
    def pack(self, vector: np.ndarray) -> np.ndarray:
        """Return the message, a new vector of bytes, for a float32 vector."""

    @abc.abstractmethod
    def unpack(self, message: np.ndarray, vector: np.ndarray) -> None:
        """Write what a message says to a float32 vector."""

    def why_not(self, way: Any) -> str | None:
        return (
            "its sums are the MPI library's, which takes numbers as they are" if way.travels_by == "library" else None
        )

    def sum(
        self, way: Way, vector: np.ndarray, step: StepOfForm, left_out: np.ndarray | None = None, gathers: bool = True
    ) -> None:
        self.reduce(way, vector, left_out)
        if gathers:
            self.gather(way, vector, left_out)

    def reduce(self, way: Way, vector: np.ndarray, left_out: np.ndarray | None = None) -> None:
        """Do what `Exchange.reduce` does; for `left_out` see `sum`."""
        kept = None if left_out is None else LeftOut(vector, left_out)
        way.over(lambda communicator: PackedMessages(communicator, self, left_out=kept)).reduce(vector)

    def gather(self, way: Way, vector: np.ndarray, left_out: np.ndarray | None = None) -> None:
        """Do what `Exchange.gather` does; an owner keeps what the others unpack. For `left_out` see `sum`."""
        kept = None if left_out is None else LeftOut(vector, left_out)
        way.over(lambda communicator: PackedMessages(communicator, self, rounds=True, left_out=kept)).gather(vector)
