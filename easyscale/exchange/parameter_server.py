"""The parameter server: some ranks own the weights, and all others send them gradients."""

import copy
import functools
from collections.abc import Callable

import numpy as np

from easyscale.communicator import Communicator
from easyscale.exchange.exchange import Cost, Exchange, Path
from easyscale.exchange.registry import register
from easyscale.exchange.server_options import MODES, check_options
from easyscale.exchange.shared_memory import SharedMemory
from easyscale.exchange.vectors import segments

SEGMENT_BYTES = 1 << 18  # fits the second-level cache together with what it is added to


@register("parameter_server")
class ParameterServer(Exchange):
    """Push gradients to the servers that own them, pull the weights back.

        worker 0    worker 1    worker 2
            |  \\     |    |     /  |
            |    \\   |    |   /    |         each edge carries S / K bytes, once each way
           server 0        server 1

    With `K` servers, `P` workers and a buffer of `S` bytes a worker sends `S` bytes and receives `S`, in `K` messages
    each way; a server sends and receives `P * S / K`. Parts longer than 256 KiB travel as several messages. Servers
    contribute no values: what is in their vectors is not added.

    Without servers (`easyscale launch --servers 0`, the default) every rank also serves: it owns its `1 / P` and sends
    `2 * S * (P - 1) / P` bytes. On one node such ranks read each other's memory, as with `shared_memory`.

    Args:
        mode: String. `"sync"`: all workers' gradients make one step, as with every other exchange. `"async"`: each
            gradient is applied when it arrives, and no worker waits. `"bounded"`: the same, but no worker may be far
            ahead.
        staleness: Int. In mode `"bounded"`: the number of steps that a worker may be ahead of the slowest, and that any
            other may make while it computes a gradient. Defaults to `None`: `4` in that mode.
        backup_workers: Int. In mode `"sync"`: the number of late workers whose gradients a step drops. Defaults to `0`.
        push_every: Int. In the other modes: the number of steps after which a worker sends the sum of its gradients.
            Defaults to `1`.
        pull_every: Int. In the other modes: the number of steps after which it fetches the weights; in between it
            applies its own gradients. Defaults to `1`.
        delay_compensation: Float, lambda. In the other modes a gradient `g` that was computed from the weights `w_then`
            becomes `g + lambda * g * g * (w_now - w_then)`. Defaults to `0.0`.
        servers_device: String. With in-graph replication, the device that owns all weights, such as `"/CPU:0"`.
            Defaults to `None`: each device owns its part.

    Raises:
        ValueError: If an option is invalid, or belongs to another mode.

    Example:

    >>> easyscale.exchange.ParameterServer("bounded", staleness=2)
    <ParameterServer exchange>

    Reference: Li et al., "Scaling distributed machine learning with the parameter server", 2014; "async": Dean et al.,
    "Large scale distributed deep networks", 2012; "bounded": Ho et al., "More effective distributed ML via a stale
    synchronous parallel parameter server", 2013; backup workers: Chen et al., "Revisiting distributed synchronous SGD",
    2016; delays: Zheng et al., "Asynchronous stochastic gradient descent with delay compensation", 2017.
    """

    options = MODES
    has_servers = True

    def __init__(
        self,
        mode: str = "sync",
        staleness: int | None = None,
        backup_workers: int = 0,
        push_every: int = 1,
        pull_every: int = 1,
        delay_compensation: float = 0.0,
        servers_device: str | None = None,
    ):
        staleness = check_options(mode, staleness, backup_workers, push_every, pull_every, delay_compensation)
        self.servers_device = servers_device
        self.mode, self.staleness, self.backup_workers = mode, staleness, backup_workers
        self.push_every, self.pull_every, self.delay_compensation = push_every, pull_every, float(delay_compensation)
        self.is_synchronous = not backup_workers and (mode == "sync" or (mode == "bounded" and staleness == 0))
        self.name = self.name if mode == "sync" else f"{self.name}:{mode}"

    @staticmethod
    def cost(size: int, nbytes: int) -> Cost | None:
        return None  # it depends on the number of servers

    def critical_path(self, size: int, nbytes: int, local_size: int = 1, servers: int = 0) -> Path | None:
        if not servers and size <= local_size:
            return SharedMemory().critical_path(size, nbytes, local_size)
        pushes = size if servers else size - 1  # a server receives them one after another, then sends
        through = pushes * nbytes / (servers or size)
        return Path(2 * pushes, 2 * through, 3 * through)

    @classmethod
    def suits(cls, communicator: Communicator) -> bool:
        return communicator.servers > 0

    def connect(self, communicator: Communicator) -> Exchange:
        if self.backup_workers >= communicator.workers > 1:
            raise ValueError(
                "`backup_workers` must leave one worker. Received: "
                f"backup_workers={self.backup_workers} of {communicator.workers} workers"
            )
        shares_memory = self.is_synchronous and not communicator.servers and len(communicator.nodes) == 1
        self.travels_by = "memory" if shares_memory else "messages"
        return super().connect(communicator)

    @functools.cached_property
    def _way(self) -> Exchange:
        """The underlying exchange: through shared memory, or by messages to the owners and back."""
        return (SharedMemory() if self.travels_by == "memory" else PushAndPull()).connect(self.communicator)

    def allocate(self, length: int, dtype: str | np.dtype = "float32") -> np.ndarray:
        return self._way.allocate(length, dtype)

    def lend(self, length: int, dtype: str | np.dtype = "float32", common: bool = False) -> np.ndarray:
        return self._way.lend(length, dtype, common)

    def shrink(self) -> None:
        self._way.shrink()

    def over(self, wrap: Callable[[Communicator], Communicator]) -> Exchange:
        other = copy.copy(self)
        vars(other)["_way"] = self._way.over(wrap)
        return other

    def allreduce(self, buffer: np.ndarray) -> None:
        self._way.allreduce(buffer)

    def owned(self, length: int) -> slice:
        return self._way.owned(length)

    def _reduce(self, buffer: np.ndarray) -> None:
        self._way.reduce(buffer)

    def _gather(self, buffer: np.ndarray) -> None:
        self._way.gather(buffer)


class PushAndPull(Exchange):
    """Send each part of a vector to the rank that owns it, and back; see `ParameterServer`."""

    has_servers = True

    def owned(self, length: int) -> slice:
        return self._owned_by(self.communicator.rank, length)

    def _reduce(self, buffer: np.ndarray) -> None:
        comm = self.communicator
        sends = []
        if not comm.is_server:
            for owner in self._owners(1):
                sends += [comm.isend(part, owner) for part in self._segments(buffer, owner)]
        sources = [rank for rank in self._in_turn(-1) if rank < comm.workers]
        own = self._segments(buffer, comm.rank)
        longest = own[0].size if own else 0
        arriving = [np.empty((2, longest), buffer.dtype) for _ in sources]

        def receive(index: int) -> list:
            if index >= len(own):
                return []
            return [
                comm.ireceive(into[index % 2][: own[index].size], source)
                for into, source in zip(arriving, sources, strict=True)
            ]

        ahead = receive(0)
        for index, part in enumerate(own):
            requests, ahead = ahead, receive(index + 1)
            if comm.is_server:
                part[:] = 0
            for request, into in zip(requests, arriving, strict=True):
                request.wait()
                np.add(part, into[index % 2][: part.size], out=part)
        for send in sends:
            send.wait()

    def _gather(self, buffer: np.ndarray) -> None:
        comm = self.communicator
        requests = [comm.ireceive(part, owner) for owner in self._owners(-1) for part in self._segments(buffer, owner)]
        own = self._segments(buffer, comm.rank)
        requests += [comm.isend(part, rank) for rank in self._in_turn(1) for part in own]
        for request in requests:
            request.wait()

    def _in_turn(self, direction: int) -> list[int]:
        """Return all other ranks, starting with a different one on each rank, so that not all send to one at a time."""
        size, rank = self.communicator.size, self.communicator.rank
        return [(rank + direction * step) % size for step in range(1, size)]

    def _owners(self, direction: int) -> list[int]:
        comm = self.communicator
        return [rank for rank in self._in_turn(direction) if not comm.servers or rank >= comm.workers]

    def _owned_by(self, rank: int, length: int) -> slice:
        comm = self.communicator
        first = comm.workers if comm.servers else 0
        count, number = comm.size - first, rank - first
        return slice(length * number // count, length * (number + 1) // count) if number >= 0 else slice(0, 0)

    def _segments(self, buffer: np.ndarray, owner: int) -> list[np.ndarray]:
        return segments(buffer[self._owned_by(owner, buffer.size)], SEGMENT_BYTES)
