"""The base class of all communicators: how ranks send each other buffers.

A communicator knows ranks and buffers, nothing of gradients. What it must provide is `isend` and `ireceive`; the rest
follows from these two and may be replaced by something faster.
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
    if not buffer.flags.c_contiguous:  # `reshape` would copy, and what is received there would be lost
        raise TypeError(
            f"`buffer` must be contiguous. Received: shape {buffer.shape}, strides {buffer.strides}. "
            "Try `np.ascontiguousarray(buffer)`"
        )
    return buffer.reshape(-1).view(np.uint8)


class Traffic:
    """Counts what a rank has sent: `messages` and `bytes`.

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
    """A transfer under way. The buffer belongs to the communicator until `wait` has returned.

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
        """Return whether the transfer is complete, so that `wait` returns at once."""
        raise NotImplementedError

    @abc.abstractmethod
    def wait(self) -> None:
        """Return when the transfer is complete.

        Raises:
            PeerError: If the other rank has left or failed.
        """


class Window(abc.ABC):
    """Memory that the ranks of one node have in common. It lasts as long as the process.

    Attributes:
        parts: List of vectors of bytes, one for each rank of the node in the order of local ranks. Every rank reads and
            writes all of them.
    """

    parts: list[np.ndarray]

    @abc.abstractmethod
    def sync(self) -> None:
        """Let what this rank has written before be seen by others before what it writes afterwards."""


class Communicator(abc.ABC):
    """`size` ranks that send each other NumPy buffers.

    Messages between two ranks arrive in the order in which they were sent, and a receive names the rank it receives
    from and a buffer of exactly the length that is sent.

    Attributes:
        rank: Int. This process's number, from 0 to `size - 1`. Rank 0 is the chief.
        size: Int. The number of ranks.
        local_rank: Int. This process's number among those of its node.
        local_size: Int. The number of ranks on this node.
        nodes: List of lists. The ranks of each node.
        host: String. The name of this node.
        library: String. What carries the messages, with its version.
        servers: Int. The number of ranks, the last ones, that only serve: they own weights, and train on no data.
        membership: `Membership`. Who takes part, and what changes that: ranks that fail, and others in their place.
        sent: `Traffic`. What this rank has sent by `isend` so far.
        progress: `Progress`. What this rank tells of itself to whoever watches it.
        timeline: `Timeline`. When this rank has begun each part of a step, if that is asked for.

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
        """The number of ranks that are no servers: the first ones."""
        return self.size - self.servers

    @property
    def is_chief(self) -> bool:
        """Whether this rank is the one that writes."""
        return self.rank == 0 and not self.membership.is_joining

    @property
    def is_server(self) -> bool:
        """Whether this rank only serves."""
        return self.rank >= self.workers

    @functools.cached_property
    def nodes(self) -> list[list[int]]:
        """The ranks of each node, in order: by default each on a node of its own."""
        return [[rank] for rank in range(self.size)]

    @functools.cached_property
    def membership(self) -> Membership:
        return FixedMembership(self.rank, self.size, self.servers)

    def duplicate(self) -> "Communicator":
        """Return a communicator of the same ranks, whose messages never meet those of this one.

        All ranks must call this alike. What is sent is counted here.
        """
        raise NotImplementedError(f"{self.library} has no second stream of messages")

    def allocate_shared(self, nbytes: int) -> Window:
        """Return a new `Window` with `nbytes` zeros in this rank's part. All ranks of the node must call this.

        Args:
            nbytes: Int. May be another on each rank.

        Raises:
            SharedMemoryError: If the node has no room for it, or the ranks share no memory.
        """
        raise SharedMemoryError(
            f"ranks must be able to share memory. Received: {self.library}, which has none. Choose the exchange 'ring'"
        )

    def allocate_shared_among(self, ranks: Sequence[int], nbytes: int) -> Window:
        """Do what `allocate_shared` does for some `ranks` of this node, of which this is one. All of them call this."""
        return Communicator.allocate_shared(self, nbytes)  # which raises

    def poll(self, done: Callable[[], bool], wait: Wait) -> None:
        """Return when `done()` is true, without holding the core.

        Args:
            done: Callable. Looks at shared memory.
            wait: `Wait`. What for, and who is told of it.

        Raises:
            PeerError: If a rank has left or failed meanwhile.
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
        """Return every rank's `row`, one below the other in the order of ranks. Shape `(size, *row.shape)`.

        All rows have one shape and dtype. With the algorithm of Bruck et al. (1997) each rank sends
        `ceil(log2 P)` messages and `P - 1` rows.
        """
        return collectives.all_gather_rows(self, row)

    def all_gather_parts(self, part: np.ndarray, counts: Sequence[int]) -> np.ndarray:
        """Return every rank's `part`, one below the other in the order of ranks.

        Each part goes straight to every other rank: `P - 1` messages sent by each.

        Args:
            part: Array of `counts[rank]` rows.
            counts: The number of rows of each rank's part.
        """
        return collectives.all_gather_parts(self, part, counts)

    def barrier(self) -> None:
        """Return when every rank has called this."""
        self.all_gather_rows(np.zeros(1, np.uint8))

    def broadcast(self, buffer: np.ndarray, root: int = 0) -> None:
        """Overwrite every rank's `buffer` with that of rank `root`, down a binomial tree."""
        collectives.broadcast(self, buffer, root)

    def all_gather_object(self, value: Any) -> list:
        """Return the list of every rank's `value`, in the order of ranks.

        For the little that ranks must tell each other beside gradients. The value travels as JSON, so that nothing
        that comes from another process is ever executed.

        Args:
            value: Whatever `json.dumps` takes.

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

        Every part goes straight to its rank: `P - 1` messages sent by each. Parts are added in the order of ranks.
        """
        collectives.reduce_scatter(self, buffer, bounds)

    def all_gather(self, buffer: np.ndarray, bounds: np.ndarray) -> None:
        """Send the part of `buffer` between `bounds[rank]` and `bounds[rank + 1]` to every other rank's `buffer`."""
        collectives.all_gather(self, buffer, bounds)
