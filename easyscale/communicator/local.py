"""Ranks as threads of one process: for tests, notebooks, and single-process scripts.

Sending is a rendezvous, as it is for long messages in MPI: `isend` completes when the other side has received, and the
data is read only then. So a deadlock, or a buffer overwritten too early, shows up here as it would there.
"""

import collections
import itertools
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from easyscale.communicator.communicator import Communicator, Request, Window, as_bytes
from easyscale.communicator.wait import Wait
from easyscale.errors import DesyncError, PeerError

__all__ = ["Local", "run_ranks"]

_NAP_SECONDS = 0.00002
_STILL_SECONDS = 10.0  # with all ranks waiting and none making progress: a deadlock

T = TypeVar("T")

_thread = threading.local()


class _Group:
    """State shared by the ranks of one `run_ranks`."""

    def __init__(self, size: int, timeout: float, nodes: Sequence[int] | None = None, servers: int = 0):
        self.size, self.servers = size, servers
        ends = np.cumsum([0, *(nodes or [size])]).tolist()
        self.nodes = [list(range(start, stop)) for start, stop in itertools.pairwise(ends)]
        # (ranks that have the window, its number among theirs) -> rank -> its part
        self.shared: collections.defaultdict[tuple[tuple[int, ...], int], dict[int, np.ndarray]]
        self.shared = collections.defaultdict(dict)
        self.deadline = time.monotonic() + timeout
        self.changed = threading.Condition()
        self.sends: _Posted = collections.defaultdict(collections.deque)
        self.receives: _Posted = collections.defaultdict(collections.deque)
        self._waiting: dict[int, str] = {}  # rank -> what it waits for
        self._ended: set[int] = set()
        self._moved_at = time.monotonic()  # when a rank last posted, or began to wait
        self.parent: _Group | None = None
        self._failed: tuple[int, BaseException] | None = None
        self.duplicates: list[_Group] = []  # groups of the same ranks, with separate messages

    @property
    def failed(self) -> tuple[int, BaseException] | None:
        """The first rank that failed, and its exception."""
        return self._failed if self.parent is None else self.parent.failed

    def fail(self, rank: int, error: BaseException) -> None:
        """Notify all ranks that one has failed."""
        with self.changed:
            self._failed = self._failed or (rank, error)
            self.changed.notify_all()
        for other in self.duplicates:
            with other.changed:
                other.changed.notify_all()

    def begin_wait(self, rank: int, action: str) -> None:
        """Record that a rank waits."""
        self._waiting[rank] = action
        self.move()

    def end_wait(self, rank: int) -> None:
        """Record that a rank no longer waits."""
        self._waiting.pop(rank, None)

    def end(self, rank: int) -> None:
        """Record that a rank has returned or failed."""
        self._ended.add(rank)

    def move(self) -> None:
        """Record that a rank has made progress, in this group or a duplicate."""
        (self.parent or self)._moved_at = time.monotonic()

    def look(self, rank: int, action: str) -> None:
        """Raise an error if a wait is in vain: a rank has failed, time is up, or all ranks wait for each other."""
        if self.failed is not None:
            raise PeerError(f"[rank {rank} of {self.size}] rank {self.failed[0]} failed: {action}")
        root, now = self.parent or self, time.monotonic()
        is_still = now > root._moved_at + _STILL_SECONDS
        if now > self.deadline or (is_still and len({*self._waiting.copy(), *root._ended.copy()}) == self.size):
            who = "; ".join(f"rank {rank}: {action}" for rank, action in sorted(self._waiting.copy().items()))
            raise TimeoutError(f"ranks wait for each other. {who}")

    def duplicate(self, number: int) -> "_Group":
        """Return the `number`-th duplicate, which the first call creates."""
        with self.changed:
            if number == len(self.duplicates):
                other = _Group(self.size, self.deadline - time.monotonic(), list(map(len, self.nodes)), self.servers)
                other.parent = self
                self.duplicates.append(other)
            return self.duplicates[number]

    def match(self, source: int, to: int) -> None:
        sends, receives = self.sends[source, to], self.receives[source, to]
        while sends and receives:
            send, receive = sends.popleft(), receives.popleft()
            if send.data.size != receive.data.size:
                send.error = receive.error = DesyncError(
                    f"[rank {to} of {self.size}] a message must have the length its receiver expects. "
                    f"Received: {send.data.size} bytes from rank {source}, expected {receive.data.size}"
                )
            else:
                receive.data[:] = send.data
            send.complete = receive.complete = True


class _LocalRequest(Request):
    def __init__(self, group: _Group, rank: int, action: str, data: np.ndarray):
        self.group, self.rank, self.action, self.data = group, rank, action, data
        self.complete = False
        self.error: DesyncError | None = None

    def done(self) -> bool:
        return self.complete

    def wait(self) -> None:
        group = self.group
        with group.changed:
            group.begin_wait(self.rank, self.action)
            while not self.complete:
                group.look(self.rank, self.action)
                group.changed.wait(1.0)
            group.end_wait(self.rank)
        if self.error is not None:
            raise self.error


# (from, to) -> posted and not yet matched
_Posted = collections.defaultdict[tuple[int, int], collections.deque[_LocalRequest]]


class _LocalWindow(Window):
    def __init__(self, parts: list[np.ndarray]):
        self.parts = parts

    def sync(self) -> None:
        pass  # only one thread runs Python at a time


class Local(Communicator):
    """One of `size` ranks that are threads of one process. A group of one rank needs no `run_ranks`."""

    def __init__(self, group: _Group | None = None, rank: int = 0):
        super().__init__()
        self._group = group or _Group(1, 0.0)
        self.rank, self.size, self.nodes = rank, self._group.size, self._group.nodes
        self.servers = self._group.servers
        self._node = next(ranks for ranks in self.nodes if rank in ranks)
        self.local_rank, self.local_size = self._node.index(rank), len(self._node)
        self._windows: collections.Counter[tuple[int, ...]] = collections.Counter()  # by the ranks that have them
        self._duplicates = 0
        self.host = os.uname().nodename
        self.library = "threads of one process"

    def isend(self, buffer: np.ndarray, to: int) -> Request:
        data = as_bytes(buffer)
        self.sent.add(data.size)
        return self._post(self._group.sends, (self.rank, to), f"sends {data.size} bytes to rank {to}", data)

    def ireceive(self, buffer: np.ndarray, source: int) -> Request:
        data = as_bytes(buffer)
        action = f"waits for {data.size} bytes from rank {source}"
        return self._post(self._group.receives, (source, self.rank), action, data)

    def duplicate(self) -> "Local":
        self._duplicates += 1
        duplicate = Local(self._group.duplicate(self._duplicates - 1), self.rank)
        duplicate.sent = self.sent
        return duplicate

    def allocate_shared(self, nbytes: int) -> Window:
        return self.allocate_shared_among(self._node, nbytes)

    def allocate_shared_among(self, ranks: Sequence[int], nbytes: int) -> Window:
        key = tuple(ranks)
        self._windows[key] += 1
        with self._group.changed:  # otherwise two threads that find nothing there would each create one
            parts = self._group.shared[key, self._windows[key]]
        parts[self.rank] = np.zeros(nbytes, np.uint8)
        self.poll(lambda: len(parts) == len(key), Wait("allocates shared memory"))
        return _LocalWindow([part for _, part in sorted(parts.items())])

    def poll(self, done: Callable[[], bool], wait: Wait) -> None:
        group = self._group
        group.begin_wait(self.rank, wait.action)
        while not done():
            group.look(self.rank, wait.action)
            time.sleep(_NAP_SECONDS)
        group.end_wait(self.rank)

    def _post(self, queues: _Posted, pair: tuple[int, int], action: str, data: np.ndarray) -> Request:
        request = _LocalRequest(self._group, self.rank, action, data)
        with self._group.changed:
            queues[pair].append(request)
            self._group.match(*pair)
            self._group.move()
            self._group.changed.notify_all()
        return request


def current() -> Local:
    """Return this thread's communicator: that of `run_ranks`, or one of a single rank."""
    if not hasattr(_thread, "communicator"):
        _thread.communicator = Local()
    return _thread.communicator


def run_ranks(
    size: int,
    function: Callable[[Communicator], T],
    timeout: float = 60.0,
    nodes: Sequence[int] | None = None,
    servers: int = 0,
) -> list[T]:
    """Call `function(communicator)` on `size` ranks that are threads of this process.

    Args:
        size: Int. The number of ranks.
        function: Callable. Takes the rank's communicator.
        timeout: Float. The number of seconds that the ranks may take. Defaults to `60.0`.
        nodes: The number of ranks on each emulated node. Defaults to `None`: all on one.
        servers: Int. The number of ranks, the last ones, that are servers. Defaults to `0`.

    Returns:
        The list of the ranks' return values.

    Raises:
        TimeoutError: If they take longer. The message says which rank waits for what.

    Example:

    >>> def on_rank(communicator):
    ...     buffer = np.full(4, communicator.rank, "float32")
    ...     easyscale.exchange.get("ring", communicator).allreduce(buffer)
    ...     return buffer
    >>> easyscale.communicator.run_ranks(3, on_rank)[0]
    array([3., 3., 3., 3.], dtype=float32)
    """
    group = _Group(size, timeout, nodes, servers)
    results: list[Any] = [None] * size

    def run(rank: int) -> None:
        _thread.communicator = Local(group, rank)
        try:
            results[rank] = function(_thread.communicator)
        except BaseException as error:
            group.fail(rank, error)
        finally:
            group.end(rank)

    threads = [threading.Thread(target=run, args=(rank,), name=f"rank {rank}", daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, group.deadline + 1.0 - time.monotonic()))
    if group.failed is not None:
        raise group.failed[1]
    late = [thread.name for thread in threads if thread.is_alive()]
    if late:
        raise TimeoutError(f"{', '.join(late)} did not end within {timeout} s and waited for no other rank")
    return results
