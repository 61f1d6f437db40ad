"""Emulation of a slow network, to see on one machine how training would behave on it."""

import queue
import threading
import time
from collections.abc import Callable

import numpy as np

from easyscale.communicator.communicator import Communicator, Request, as_bytes
from easyscale.communicator.wait import Wait
from easyscale.errors import EasyScaleError

__all__ = ["Line", "Throttled"]


class Line:
    """A rank's outgoing link: a thread holds back each message until it would have arrived.

    A message of `n` bytes starts when those before it have left, and arrives `n / bandwidth + latency` later. Only
    outgoing messages are delayed: an incoming one was delayed by its sender's link. Messages from several ranks at once
    arrive as fast as each of them sends.

    Args:
        bandwidth: Float. Bytes per second. Defaults to `None`: unlimited.
        latency: Float. Seconds. Defaults to `0.0`.
    """

    def __init__(self, bandwidth: float | None = None, latency: float = 0.0):
        self.bandwidth, self.latency = bandwidth, latency
        self._free_at = 0.0  # when all queued messages have left
        self._lock = threading.Lock()
        self._kept: queue.SimpleQueue[tuple[float, _Kept]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def send(self, nbytes: int, begin: Callable[[], Request]) -> Request:
        """Call `begin()`, which sends a message of `nbytes` bytes, at the time it would have arrived."""
        kept = _Kept(begin)
        with self._lock:  # servers and exchanges send from their own threads
            self._free_at = max(time.monotonic(), self._free_at) + (nbytes / self.bandwidth if self.bandwidth else 0.0)
            self._kept.put((self._free_at + self.latency, kept))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="easyscale-line", daemon=True)
                self._thread.start()
        return kept

    def _run(self) -> None:
        while True:
            when, kept = self._kept.get()
            time.sleep(max(0.0, when - time.monotonic()))
            kept.begin()

    def __repr__(self) -> str:
        bandwidth = "" if self.bandwidth is None else f"{8e-6 * self.bandwidth:g} Mbit/s, "
        return f"{bandwidth}{1e3 * self.latency:g} ms"


class Throttled(Communicator):
    """The ranks of another communicator, as if each were on its own host with a slow link.

    Everything is sent by `isend`, collectives too, so all of it goes through the link. There is no shared memory.

    Args:
        communicator: The other `Communicator`.
        line: `Line` of this rank.

    Raises:
        EasyScaleError: If the job is elastic.
    """

    def __init__(self, communicator: Communicator, line: Line):
        if communicator.membership.is_elastic:
            raise EasyScaleError(
                f"a network is slowed down for ranks that stay. Received: {line!r} and --elastic. Leave one out"
            )
        self._communicator, self._line = communicator, line
        self.timeline = communicator.timeline
        self.sent, self.progress, self.membership = communicator.sent, communicator.progress, communicator.membership
        self.rank, self.size, self.servers = communicator.rank, communicator.size, communicator.servers
        self.local_rank, self.local_size = 0, 1
        self.host, self.library = communicator.host, f"{communicator.library} as over {line!r}"

    def isend(self, buffer: np.ndarray, to: int) -> Request:
        return self._line.send(as_bytes(buffer).size, lambda: self._communicator.isend(buffer, to))

    def ireceive(self, buffer: np.ndarray, source: int) -> Request:
        return self._communicator.ireceive(buffer, source)

    def poll(self, done: Callable[[], bool], wait: Wait) -> None:
        self._communicator.poll(done, wait)

    def duplicate(self) -> "Throttled":
        return Throttled(self._communicator.duplicate(), self._line)


class _Kept(Request):
    """A message held back until it would have arrived."""

    def __init__(self, begin: Callable[[], Request]):
        self._begin, self._begun = begin, threading.Event()
        self._request: Request | None = None
        self._error: Exception | None = None

    def begin(self) -> None:
        """Send it now. An error is raised later, by `done` and `wait`."""
        try:
            self._request = self._begin()
        except Exception as error:
            self._error = error
        self._begun.set()

    def done(self) -> bool:
        return self._begun.is_set() and self._sent().done()

    def wait(self) -> None:
        self._begun.wait()
        self._sent().wait()

    def _sent(self) -> Request:
        if self._error is not None:
            raise self._error
        assert self._request is not None
        return self._request
