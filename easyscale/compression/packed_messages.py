"""A communicator that packs messages of gradients."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from easyscale.communicator import Communicator, Request
from easyscale.communicator.wait import Wait

__all__ = ["LeftOut", "PackedMessages"]


class Form(Protocol):
    """The methods of a `Packing`."""

    def nbytes(self, length: int) -> int: ...

    def pack(self, vector: np.ndarray) -> np.ndarray: ...

    def unpack(self, message: np.ndarray, vector: np.ndarray) -> None: ...


class LeftOut:
    """Accumulator of what messages leave out of the parts of a vector.

    Args:
        vector: The vector whose parts are sent.
        total: Vector of the same length, to which what is left out is added.
    """

    def __init__(self, vector: np.ndarray, total: np.ndarray):
        self._begin, self._total = _address(vector), total
        self._arrived = np.empty(0, vector.dtype)

    def add(self, part: np.ndarray, message: np.ndarray, form: Form) -> None:
        """Add what the message for a part of the vector leaves out.

        Raises:
            ValueError: If it is not a part of the vector: what is left out of it could not be kept.
        """
        if self._arrived.size < part.size:
            self._arrived = np.empty(part.size, part.dtype)
        arrived = self._arrived[: part.size]
        form.unpack(message, arrived)
        start = (_address(part) - self._begin) // part.itemsize
        if start < 0 or start + part.size > self._total.size:
            raise ValueError(
                "error feedback needs an exchange that sends parts of the vector that it is given. Received: one that "
                "sends copies. Use 'ring', or a form that keeps no error"
            )
        total = self._total[start : start + part.size]
        with np.errstate(invalid="ignore"):  # from numbers that are not finite
            total += part
            total -= arrived


class PackedMessages(Communicator):
    """The ranks of another communicator, between which float32 vectors travel packed. All else is unchanged.

    It is transparent to an exchange that sends by `isend` and receives by `ireceive`. The other communicator counts the
    packed bytes that are sent.

    Args:
        communicator: The other `Communicator`.
        form: `Packing`. The same on all ranks.
        rounds: Bool. Whether a vector that is sent is overwritten with what the others unpack. A vector that is passed
            on, in the pieces in which it came, is then sent as the message that was received. Defaults to `False`.
        left_out: `LeftOut`. Accumulates what messages leave out. Defaults to `None`: it is lost.

    Example:

    >>> comm = easyscale.communicator.get()
    >>> PackedMessages(comm, easyscale.compression.BF16()).size
    1
    """

    def __init__(self, communicator: Communicator, form: Form, rounds: bool = False, left_out: LeftOut | None = None):
        self._communicator, self._form, self._left_out = communicator, form, left_out
        self._messages: dict[tuple[int, int], np.ndarray] | None = {} if rounds else None  # by `_span_of`
        self.sent, self.progress, self.timeline = communicator.sent, communicator.progress, communicator.timeline
        self.rank, self.size, self.servers = communicator.rank, communicator.size, communicator.servers
        self.local_rank, self.local_size = communicator.local_rank, communicator.local_size
        self.nodes, self.membership = communicator.nodes, communicator.membership
        self.host, self.library = communicator.host, communicator.library

    def isend(self, buffer: np.ndarray, to: int) -> Request:
        if buffer.dtype != np.float32:
            return self._communicator.isend(buffer, to)
        return self._communicator.isend(self._pack(buffer.reshape(-1)), to)

    def _pack(self, vector: np.ndarray) -> np.ndarray:
        place = _span_of(vector)
        if self._messages is not None and place in self._messages:
            return self._messages[place]
        message = self._form.pack(vector)
        if message.dtype != np.uint8 or message.size != self._form.nbytes(vector.size):  # receivers expect so many
            raise ValueError(
                "`pack` of a form must return as many bytes as its `nbytes` says. Received: "
                f"{message.size} of {message.dtype} for {vector.size} numbers by {self._form}, where `nbytes` says "
                f"{self._form.nbytes(vector.size)}. Return a vector of np.uint8, as by `view`"
            )
        if self._left_out is not None:
            self._left_out.add(vector, message, self._form)
        if self._messages is not None:
            self._messages[place] = message
            self._form.unpack(message, vector)
        return message

    def ireceive(self, buffer: np.ndarray, source: int) -> Request:
        if buffer.dtype != np.float32:
            return self._communicator.ireceive(buffer, source)
        message, vector = np.empty(self._form.nbytes(buffer.size), np.uint8), buffer.reshape(-1)
        if self._messages is not None:
            self._messages[_span_of(vector)] = message
        request = self._communicator.ireceive(message, source)
        return _Unpacking(request, lambda: self._form.unpack(message, vector))

    def poll(self, done: Callable[[], bool], wait: Wait) -> None:
        self._communicator.poll(done, wait)

    # These carry no gradients.

    def all_gather_rows(self, row: np.ndarray) -> np.ndarray:
        return self._communicator.all_gather_rows(row)

    def all_gather_parts(self, part: np.ndarray, counts: Sequence[int]) -> np.ndarray:
        return self._communicator.all_gather_parts(part, counts)

    def broadcast(self, buffer: np.ndarray, root: int = 0) -> None:
        self._communicator.broadcast(buffer, root)


class _Unpacking(Request):
    """A message in progress, which is unpacked when it has arrived."""

    def __init__(self, request: Request, unpack: Callable[[], None]):
        self._request, self._unpack = request, unpack

    def done(self) -> bool:
        return self._request.done()

    def wait(self) -> None:
        self._request.wait()
        self._unpack()


def _address(vector: np.ndarray) -> int:
    return vector.__array_interface__["data"][0]


def _span_of(vector: np.ndarray) -> tuple[int, int]:
    """Return the address and the length of a vector."""
    return _address(vector), vector.size
