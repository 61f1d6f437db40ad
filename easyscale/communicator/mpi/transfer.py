"""Messages in progress."""

import numpy as np

from easyscale.communicator.communicator import Request, as_bytes
from easyscale.communicator.mpi.start import MPI
from easyscale.communicator.mpi.waiting import Waiting
from easyscale.errors import DesyncError, PeerError

__all__ = ["MESSAGE_LIMIT", "Nothing", "Transfer", "is_one_message", "messages"]

MESSAGE_LIMIT = 1 << 30  # bytes; MPI counts are C ints, so a longer buffer travels as several messages


class Transfer(Request):
    """A buffer sent to another rank, or received from it, by one or more MPI requests.

    Args:
        waiting: `Waiting` of this rank.
        action: String. What this rank is doing, such as "sends to rank 1".
        requests: List of `mpi4py.MPI.Request`.
        peer: Int. The other rank.
        expected: Lengths in bytes of the messages to receive. Defaults to `None`: this is a send.
    """

    def __init__(self, waiting: Waiting, action: str, requests: list, peer: int, expected: list[int] | None = None):
        self._waiting, self._action, self._requests, self._peer = waiting, action, requests, peer
        self._expected = expected
        self._lengths: list[int] = []  # of the completed requests
        self._error: PeerError | None = None

    @property
    def is_complete(self) -> bool:
        """True if `done` or `wait` has observed completion."""
        return len(self._lengths) == len(self._requests)

    def done(self) -> bool:
        status = MPI.Status()
        try:
            while len(self._lengths) < len(self._requests) and self._requests[len(self._lengths)].Test(status):
                self._lengths.append(status.Get_count(MPI.BYTE))
        except MPI.Exception as error:
            self._error = self._waiting.named(error, self._action)
        if self._error is not None:  # MPI reports it only once
            raise self._error
        return self.is_complete

    def wait(self) -> None:
        expected, self._expected = self._expected, None
        if self._error is not None:
            raise self._error
        for request in self._requests[len(self._lengths) :]:
            self._lengths.append(self._waiting.wait(request, self._action, lambda: [self._peer]))
        lengths, ranks = self._lengths, self._waiting.membership
        if expected is not None and lengths != expected:  # MPI itself reports a longer one
            raise DesyncError(
                f"{ranks.name} a message must have the length its receiver expects. "
                f"Received: {sum(lengths)} bytes, expected {sum(expected)}, while this rank {self._action}"
            )


class Nothing(Request):
    """A no-op transfer."""

    def done(self) -> bool:
        return True

    def wait(self) -> None:
        pass


def is_one_message(buffer: np.ndarray) -> bool:
    """Return whether a buffer fits into one message."""
    return as_bytes(buffer).size <= MESSAGE_LIMIT


def messages(vector: np.ndarray) -> list[np.ndarray]:
    """Split a vector into parts that fit into one message each; at least one part."""
    step = MESSAGE_LIMIT // vector.itemsize
    return [vector[start : start + step] for start in range(0, max(vector.size, 1), step)]
