"""A communicator whose messages of gradients travel in another form."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from easyscale.communicator import Communicator, Request
from easyscale.communicator.wait import Wait

__all__ = ["PackedMessages"]


class Form(Protocol):
    """In what form messages travel: a `Packing`."""

    def nbytes(self, length: int) -> int: ...

    def pack(self, vector: np.ndarray) -> np.ndarray: ...

    def unpack(self, message: np.ndarray, vector: np.ndarray) -> None: ...


class PackedMessages(Communicator):
    """The ranks of another communicator, between which float32 vectors travel in another form. All else is as it was.

    An exchange that sends by `isend` and receives by `ireceive` needs to know nothing of it. What is sent is counted
    by the other communicator, in the form in which it travels.

    Args:
        communicator: The other `Communicator`.
        form: `Packing`. The same on all ranks.
        rounds: Bool. Whether what is sent becomes, on this rank too, what the others unpack. Then who passes on what
            has come, in the same pieces, sends the message in which it came. Defaults to `False`.
    """

    def __init__(self, communicator: Communicator, form: Form, rounds: bool = False):
        self._communicator, self._form = communicator, form
        self._messages: dict[tuple[int, int], np.ndarray] | None = {} if rounds else None  # by where they belong
        self.sent, self.progress = communicator.sent, communicator.progress
        self.rank, self.size, self.servers = communicator.rank, communicator.size, communicator.servers
        self.local_rank, self.local_size = communicator.local_rank, communicator.local_size
        self.nodes, self.membership = communicator.nodes, communicator.membership
        self.host, self.library = communicator.host, communicator.library

    def isend(self, buffer: np.ndarray, to: int) -> Request:
        if buffer.dtype != np.float32:
            return self._communicator.isend(buffer, to)
        return self._communicator.isend(self._pack(buffer.reshape(-1)), to)

    def _pack(self, vector: np.ndarray) -> np.ndarray:
        if self._messages is None:
            return self._form.pack(vector)
        place = _span_of(vector)
        if place not in self._messages:
            self._messages[place] = self._form.pack(vector)
            self._form.unpack(self._messages[place], vector)
        return self._messages[place]

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
    """A message under way, and what is done when it has come."""

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
    """Return where a vector begins in memory, and its length."""
    return _address(vector), vector.size
