"""Control messages between processes, and detection of failed ones. Over MPI, without importing it."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np

__all__ = ["Mail"]


class Status(Protocol):
    """The envelope of a message: an `mpi4py.MPI.Status`."""

    def Get_source(self) -> int: ...

    def Get_count(self) -> int: ...


class Group(Protocol):
    """Some of the world ranks: an `mpi4py.MPI.Group`."""

    @property
    def size(self) -> int: ...

    def Translate_ranks(self, ranks: list[int], group: Any) -> list[int]: ...

    def Free(self) -> None: ...


class Intracomm(Protocol):
    """The processes that send each other messages: an `mpi4py.MPI.Intracomm`. MPI's other types are `Any`."""

    @property
    def rank(self) -> int: ...

    @property
    def group(self) -> Group: ...

    def Isend(self, buf: np.ndarray, dest: int, tag: int) -> Any: ...

    def Iprobe(self, source: int, tag: int, status: Any) -> bool: ...

    def Recv(self, buf: np.ndarray, source: int, tag: int) -> None: ...

    def Get_failed(self) -> Group: ...

    def Ack_failed(self) -> int: ...


class Mail:
    """A channel for control messages, which are JSON. Several threads may use it.

    Args:
        intra: `Intracomm`. It stays the same when ranks are renumbered.
        status: Function without arguments. Returns a new `Status`.
        error: `mpi4py.MPI.Exception`.
        any_source: Int. `mpi4py.MPI.ANY_SOURCE`, whose value differs between MPI libraries.
        elastic: Bool. Whether processes may fail; in any other job MPI ends all when one does.
    """

    def __init__(
        self, intra: Intracomm, status: Callable[[], Status], error: type[Exception], any_source: int, elastic: bool
    ):
        self._intra, self._new_status, self._error = intra, status, error
        self._any_source, self._elastic = any_source, elastic
        self._kept: list = []  # sends last as long as the process: they may never be received
        self._failed: frozenset[int] = frozenset()
        self._lock = threading.Lock()

    @property
    def own(self) -> int:
        """The world rank of this process."""
        return self._intra.rank

    @property
    def failed(self) -> frozenset[int]:
        """The world ranks that have failed, as far as this process knows."""
        if self._elastic:
            with self._lock:
                group = self._intra.Get_failed()
                if group.size != len(self._failed):
                    world_ranks = group.Translate_ranks(list(range(group.size)), self._intra.group)
                    self._failed = frozenset(world_ranks)
                group.Free()
        return self._failed

    def send(self, world_rank: int, tag: int, words: Any = None) -> None:
        """Send a JSON value to a world rank, which may have failed."""
        message = np.frombuffer(json.dumps(words).encode(), np.uint8)
        with self._lock, self._unless_failed():
            self._kept.append((message, self._intra.Isend(message, world_rank, tag)))

    def hear(self, tag: int, world_rank: int | None = None) -> tuple[int, Any] | None:
        """Receive a message from a world rank, or from any; return sender and value, or `None` if there is none."""
        source = self._any_source if world_rank is None else world_rank
        status = self._new_status()
        for _ in range(2):  # the first time MPI may only report that a world rank has failed
            with self._lock, self._unless_failed():
                if not self._intra.Iprobe(source, tag, status):
                    return None
                message = np.empty(status.Get_count(), np.uint8)
                self._intra.Recv(message, status.Get_source(), tag)
                return status.Get_source(), json.loads(message.tobytes())
        return None

    def silence(self) -> threading.Lock:
        """Return a context in which no other thread sends or receives messages."""
        return self._lock

    @contextlib.contextmanager
    def _unless_failed(self) -> Iterator[None]:
        try:
            yield
        except self._error:
            if not self._elastic:
                raise
            with contextlib.suppress(self._error):
                self._intra.Ack_failed()  # makes receiving from the others possible again
