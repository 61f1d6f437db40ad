"""Messages under way."""

import numpy as np

from easyscale.communicator.communicator import Request, as_bytes
from easyscale.communicator.mpi.start import MPI
from easyscale.communicator.mpi.waiting import Waiting
from easyscale.errors import DesyncError, PeerError

__all__ = ["MESSAGE_LIMIT", "Nothing", "Transfer", "is_one_message", "messages"]

MESSAGE_LIMIT = 1 << 30  # bytes; MPI counts are C ints, so a longer buffer travels as several messages


class Transfer(Request):
    """What is sent to another rank, or received from it, by several requests of MPI's.

    Args:
        waiting: `Waiting` of this rank.
        action: String. What this rank does meanwhile.
        requests: List of `mpi4py.MPI.Request`.
        peer: Int. The other rank.
        expected: Lengths in bytes, of what is received. Defaults to `None`: it is sent.
    """

    def __init__(self, waiting: Waiting, action: str, requests: list, peer: int, expected: list[int] | None = None):
        self._waiting, self._action, self._requests, self._peer = waiting, action, requests, peer
        self._expected = expected
        self._lengths: list[int] = []  # of those that are complete
        self._error: PeerError | None = None

    @property
    def is_complete(self) -> bool:
        """Whether somebody has seen that it is."""
        return len(self._lengths) == len(self._requests)

    def done(self) -> bool:
        status = MPI.Status()
        try:
            while len(self._lengths) < len(self._requests) and self._requests[len(self._lengths)].Test(status):
                self._lengths.append(status.Get_count(MPI.BYTE))
        except MPI.Exception as error:
            self._error = self._waiting.named(error, self._action)
        if self._error is not None:  # MPI says it once
            raise self._error
        return self.is_complete

    def wait(self) -> None:
        expected, self._expected = self._expected, None
        if self._error is not None:
            raise self._error
        for request in self._requests[len(self._lengths) :]:
            self._lengths.append(self._waiting.wait(request, self._action, lambda: [self._peer]))
        lengths, ranks = self._lengths, self._waiting.membership
        if expected is not None and lengths != expected:  # a longer one is an error of MPI's own
            raise DesyncError(
                f"{ranks.name} a message must have the length its receiver expects. "
                f"Received: {sum(lengths)} bytes, expected {sum(expected)}, while this rank {self._action}"
            )


class Nothing(Request):
    """A transfer that does not take place."""

    def done(self) -> bool:
        return True

    def wait(self) -> None:
        pass


def is_one_message(buffer: np.ndarray) -> bool:
    """Return whether one message carries a buffer."""
    return as_bytes(buffer).size <= MESSAGE_LIMIT


def messages(vector: np.ndarray) -> list[np.ndarray]:
    """Cut a vector into parts that one message carries; at least one."""
    step = MESSAGE_LIMIT // vector.itemsize
    return [vector[start : start + step] for start in range(0, max(vector.size, 1), step)]
