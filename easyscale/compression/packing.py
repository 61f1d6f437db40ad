"""Compressions in which the sender packs each message and the receiver unpacks it."""

import abc
from typing import Any, ClassVar

import numpy as np

from easyscale.compression.compression import Compression, StepOfForm, SupportsReduce
from easyscale.compression.packed_messages import LeftOut, PackedMessages

__all__ = ["Packing"]


class Packing(Compression):
    """A compression of messages. A subclass defines three methods: `nbytes`, `pack` and `unpack`.

    Ranks sum in float32. A rank packs what it sends and unpacks what it receives, so a sum that passes through several
    ranks, as around a ring, is packed by each of them. On the way back a rank passes on the message that it has
    received. Data that ranks of a node read in shared memory are not sent, and not packed.

    What a message leaves out stays with the rank that packed it. That is a part of its own numbers if they go directly
    to their owner, as with `parameter_server`; of a partial sum if sums are passed on, as around a ring; and of the
    complete sum of what it owns, which goes back to all. So nothing is lost, and nothing counts twice.

    Attributes:
        error: Float. The largest error of a number that is packed and unpacked, relative to the largest number in the
            vector.

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
        """Decode a message into a float32 vector."""

    def why_not(self, exchange: Any) -> str | None:
        return (
            "its sums are the MPI library's, which takes numbers as they are"
            if exchange.travels_by == "library"
            else None
        )

    def sum(
        self,
        exchange: SupportsReduce,
        vector: np.ndarray,
        step: StepOfForm,
        left_out: np.ndarray | None = None,
        gathers: bool = True,
    ) -> None:
        self.reduce(exchange, vector, left_out)
        if gathers:
            self.gather(exchange, vector, left_out)

    def reduce(self, exchange: SupportsReduce, vector: np.ndarray, left_out: np.ndarray | None = None) -> None:
        """Do `Exchange.reduce` with packed messages; for `left_out` see `sum`."""
        kept = None if left_out is None else LeftOut(vector, left_out)
        exchange.over(lambda communicator: PackedMessages(communicator, self, left_out=kept)).reduce(vector)

    def gather(self, exchange: SupportsReduce, vector: np.ndarray, left_out: np.ndarray | None = None) -> None:
        """Do `Exchange.gather` with packed messages; owners keep what the others unpack. For `left_out` see `sum`."""
        kept = None if left_out is None else LeftOut(vector, left_out)
        exchange.over(lambda communicator: PackedMessages(communicator, self, rounds=True, left_out=kept)).gather(
            vector
        )
