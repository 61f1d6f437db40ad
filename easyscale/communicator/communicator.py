"""The base class of communicators, through which ranks send buffers to each other.

A communicator deals with ranks and buffers and knows nothing of gradients. A subclass must provide `isend` and
`ireceive`; the rest is built on these two and may be overridden by something faster.
"""

import abc
import functools
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from easyscale.communicator import collectives
from easyscale.communicator.wait import Wait
from easyscale.elastic.membership import FixedMembership, Membership
from easyscale.errors import SharedMemoryError
from easyscale.progress import Progress
from easyscale.timeline import Timeline

__all__ = ["Communicator", "Request", "Traffic", "Window", "as_bytes"]


def as_bytes(buffer: np.ndarray) -> np.ndarray:
    """Return the memory of a contiguous `buffer` as a vector of bytes, without a copy."""
    if not buffer.flags.c_contiguous:  # `reshape` would copy, and data received into the copy would be lost
        raise TypeError(
            f"`buffer` must be contiguous. Received: shape {buffer.shape}, strides {buffer.strides}. "
            "Try `np.ascontiguousarray(buffer)`"
        )
    return buffer.reshape(-1).view(np.uint8)


class Traffic:
    """Counters of what a rank has sent: `messages` and `bytes`.

    Example:

    >>> def on_rank(communicator):
    ...     easyscale.exchange.get("ring", communicator).allreduce(np.ones(100, "float32"))
    ...     return communicator.sent
    >>> easyscale.communicator.run_ranks(2, on_rank)[0]
    Traffic(messages=2, bytes=400)
    """

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0

    def add(self, nbytes: int) -> None:
        self.messages += 1
        self.bytes += nbytes

    def __repr__(self) -> str:
        return f"Traffic(messages={self.messages}, bytes={self.bytes})"


class Request(abc.ABC):
    """A transfer in progress. The buffer belongs to the communicator until `wait` returns.

    Example:

    >>> def on_rank(communicator):
    ...     request = communicator.isend(np.full(2, communicator.rank), to=1 - communicator.rank)
    ...     communicator.receive(received := np.empty(2, int), source=1 - communicator.rank)
    ...     request.wait()
    ...     return received
    >>> easyscale.communicator.run_ranks(2, on_rank)[0]
    array([1, 1])
    """

    def done(self) -> bool:
        """Return whether the transfer is complete, so that `wait` would not block."""
        raise NotImplementedError

    @abc.abstractmethod
    def wait(self) -> None:
        """Block until the transfer is complete.

        Raises:
            PeerError: If the other rank has left or failed.
        """


class Window(abc.ABC):
    """Memory shared by the ranks of one node. It lives as long as the process.

    Attributes:
        parts: List of byte vectors, one per rank of the node, in local rank order. Every rank can read and write all of
            them.
    """

    parts: list[np.ndarray]

    @abc.abstractmethod
    def sync(self) -> None:
        """Memory barrier: make this rank's earlier writes visible to others before its later ones."""


class Communicator(abc.ABC):
    """A set of `size` ranks that send NumPy buffers to each other.

    Messages between two ranks arrive in the order in which they were sent. A receive names its source rank and a buffer
    of exactly the length that is sent.

    Attributes:
        rank: Int. This process's number, from 0 to `size - 1`. Rank 0 is the chief.
        size: Int. The number of ranks.
        local_rank: Int. This process's rank among those of its node.
        local_size: Int. The number of ranks on this node.
        nodes: List of lists. The ranks of each node.
        host: String. The name of this node.
        library: String. The messaging library and its version.
        servers: Int. The number of ranks, the last ones, that only serve: they own weights and do not train.
        membership: `Membership`. The participating ranks, and how failures and replacements change them.
        sent: `Traffic`. The messages and bytes that this rank has sent by `isend` so far.
        progress: `Progress`. The status that this rank reports to a process that watches it.
        timeline: `Timeline`. The start time of each part of a step, if profiling is on.

    Example:

    >>> easyscale.communicator.run_ranks(2, lambda communicator: (communicator.rank, communicator.is_chief))
    [(0, True), (1, False)]
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    host: str
    library: str
    servers: int = 0

    def __init__(self) -> None:
        self.sent, self.progress, self.timeline = Traffic(), Progress(), Timeline()

    @abc.abstractmethod
    def isend(self, buffer: np.ndarray, to: int) -> Request:
        """Start to send a contiguous `buffer` to rank `to`. Do not write to it until the request is complete."""

    @abc.abstractmethod
    def ireceive(self, buffer: np.ndarray, source: int) -> Request:
        """Start to receive from rank `source` into a contiguous `buffer`."""

    @property
    def workers(self) -> int:
        """The number of ranks that are not servers: the first ones."""
        return self.size - self.servers

    @property
    def is_chief(self) -> bool:
        """True if this rank is the chief, which writes files."""
        return self.rank == 0 and not self.membership.is_joining

    @property
    def is_server(self) -> bool:
        """True if this rank only serves."""
        return self.rank >= self.workers

    @functools.cached_property
    def nodes(self) -> list[list[int]]:
        """The ranks of each node, in order. By default each rank is on its own node."""
        return [[rank] for rank in range(self.size)]

    @functools.cached_property
    def membership(self) -> Membership:
        return FixedMembership(self.rank, self.size, self.servers)

    def duplicate(self) -> "Communicator":
        """Return a communicator of the same ranks whose messages never mix with this one's.

        Collective: all ranks must call this in the same order. Its traffic is counted in this one's `sent`.
        """
        raise NotImplementedError(f"{self.library} has no second stream of messages")

    def allocate_shared(self, nbytes: int) -> Window:
        """Return a new `Window` with `nbytes` zeros in this rank's part. All ranks of the node must call this.

        Args:
            nbytes: Int. May differ between ranks.

        Raises:
            SharedMemoryError: If the node has no room for it, or the ranks cannot share memory.
        """
        raise SharedMemoryError(
            f"ranks must be able to share memory. Received: {self.library}, which has none. Choose the exchange 'ring'"
        )

    def allocate_shared_among(self, ranks: Sequence[int], nbytes: int) -> Window:
        """Return a `Window` as `allocate_shared` does, for some `ranks` of this node, all of which must call this."""
        return Communicator.allocate_shared(self, nbytes)  # which raises

    def poll(self, done: Callable[[], bool], wait: Wait) -> None:
        """Wait until `done()` is true, without occupying the core.

        Args:
            done: Callable. Tests a condition, such as a flag in shared memory.
            wait: `Wait`. Describes the wait.

        Raises:
            PeerError: If a rank leaves or fails in the meantime.
        """
        while not done():
            time.sleep(0.0001)

    def send(self, buffer: np.ndarray, to: int) -> None:
        """Send `buffer` to rank `to`."""
        self.isend(buffer, to).wait()

    def receive(self, buffer: np.ndarray, source: int) -> None:
        """Receive from rank `source` into `buffer`."""
        self.ireceive(buffer, source).wait()

    def all_gather_rows(self, row: np.ndarray) -> np.ndarray:
        """Return every rank's `row`, stacked in rank order. Shape `(size, *row.shape)`.

        All rows must have the same shape and dtype. With the algorithm of Bruck et al. (1997) each rank sends
        `ceil(log2 P)` messages and `P - 1` rows.
        """
        return collectives.all_gather_rows(self, row)

    def all_gather_parts(self, part: np.ndarray, counts: Sequence[int]) -> np.ndarray:
        """Return every rank's `part`, concatenated in rank order.

        Each part goes directly to every other rank: each rank sends `P - 1` messages.

        Args:
            part: Array of `counts[rank]` rows.
            counts: The number of rows in each rank's part.
        """
        return collectives.all_gather_parts(self, part, counts)

    def barrier(self) -> None:
        """Block until every rank has called this."""
        self.all_gather_rows(np.zeros(1, np.uint8))

    def broadcast(self, buffer: np.ndarray, root: int = 0) -> None:
        """Overwrite every rank's `buffer` with that of rank `root`, down a binomial tree."""
        collectives.broadcast(self, buffer, root)

    def all_gather_object(self, value: Any) -> list:
        """Return the list of every rank's `value`, in rank order.

        For small control data, not gradients. The value travels as JSON, so nothing that comes from another process is
        ever executed.

        Args:
            value: Any value that `json.dumps` accepts.

        Example:

        >>> easyscale.communicator.get("local").all_gather_object({"exchange": "ring"})
        [{'exchange': 'ring'}]
        """
        message = np.frombuffer(json.dumps(value).encode(), np.uint8)
        lengths = self.all_gather_rows(np.array([message.size]))[:, 0]
        row = np.zeros(lengths.max(), np.uint8)
        row[: message.size] = message
        rows = self.all_gather_rows(row)
        return [json.loads(row[:length].tobytes()) for row, length in zip(rows, lengths, strict=True)]

    def all_reduce(self, buffer: np.ndarray) -> None:
        """Overwrite `buffer` with its sum over ranks: `reduce_scatter`, then `all_gather`."""
        bounds = np.linspace(0, buffer.size, self.size + 1).astype(int)
        self.reduce_scatter(buffer, bounds)
        self.all_gather(buffer, bounds)

    def reduce_scatter(self, buffer: np.ndarray, bounds: np.ndarray) -> None:
        """Overwrite the part of `buffer` between `bounds[rank]` and `bounds[rank + 1]` with its sum over ranks.

        Every part goes directly to its rank: each rank sends `P - 1` messages. Parts are added in rank order.
        """
        collectives.reduce_scatter(self, buffer, bounds)

    def all_gather(self, buffer: np.ndarray, bounds: np.ndarray) -> None:
        """Send the part of `buffer` between `bounds[rank]` and `bounds[rank + 1]` to every other rank's `buffer`."""
        collectives.all_gather(self, buffer, bounds)
