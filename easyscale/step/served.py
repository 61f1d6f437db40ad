"""Weights that servers own and change at any time, seen from a worker."""

import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from easyscale.errors import EasyScaleError
from easyscale.exchange import Exchange, ParameterServer
from easyscale.layout.bucket import lend
from easyscale.layout.shards import Shards
from easyscale.layout.specs import Spec, Variable, specs_of
from easyscale.serving import Client, Server, Staleness, rule_of
from easyscale.step.shared import Shared

__all__ = ["OwnedWeights", "Served"]


class OwnedWeights(Protocol):
    """The weights that a server owns which does not wait for all workers, and their update."""

    def step(self, gradients: list[Any]) -> None:
        """Update them by gradients of the owned parts, by number; `None` where there is none."""

    def read(self) -> list[np.ndarray]:
        """Return this rank's parts of the variables, by number."""

    def take(self) -> None:
        """Begin with the weights that this rank has as a worker."""

    def set_rate(self, rate: float) -> None:
        """Use the learning rate that the chief has."""


class _ServerThread:
    """A server that serves beside whatever else its rank does.

    Attributes:
        server: The `Server`.
        failure: The exception that it raised, or `None`.
    """

    _thread: threading.Thread  # of the last epoch that has begun

    def __init__(self, server: Server) -> None:
        self.server = server
        self.failure: BaseException | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._serve, name="easyscale-server", daemon=True)
        self._thread.start()

    def join(self) -> None:
        self._thread.join()
        self.check()

    def check(self) -> None:
        """Raise what the server has raised."""
        if self.failure is not None:
            raise self.failure

    def _serve(self) -> None:
        try:
            self.server.serve()
        except BaseException as error:
            self.failure = error
            sys.excepthook(*sys.exc_info())  # which ends all ranks: they wait for this one's answers


class Served:
    """The servers of one optimizer: a worker's way to them and, where this rank is one, itself.

    Args:
        exchange: A connected `ParameterServer` that is not synchronous.
        shared: The `Shared` of its communicator.
        shards: The `Shards` of the variables.
        part: The `OwnedWeights` of this rank.

    Attributes:
        in_epoch: Bool. Whether servers have weights that ranks have not collected.
    """

    def __init__(
        self,
        exchange: Exchange,
        shared: Shared,
        shards: Shards,
        part: OwnedWeights,
    ):
        if not isinstance(exchange, ParameterServer):
            raise ValueError(
                "workers that do not wait for each other need a `ParameterServer`. "
                f"Received: exchange='{exchange.name}'. Use 'parameter_server:async'"
            )
        self._exchange, self._shared, self._shards, self._part = exchange, shared, shards, part
        self.in_epoch = False
        self._communicator = comm = exchange.communicator
        self._streams = requests, replies = comm.duplicate(), comm.duplicate()
        owners = [
            (rank, ranges) for rank, ranges in enumerate(shards.ranges) if comm.servers == 0 or rank >= comm.workers
        ]
        self._server: _ServerThread | None = None
        if any(rank == comm.rank for rank, _ in owners):
            specs = [
                Spec((own.stop - own.start,), bucket.dtype)
                for own, bucket in zip(shards.ranges[comm.rank], shards.buckets, strict=True)
            ]

            def update(vectors: list[np.ndarray], rate: float | None, flags: np.ndarray | None) -> None:
                if rate is not None and comm.rank > 0:  # the chief has it, and may have set another meanwhile
                    part.set_rate(rate)
                parts = shards.unpack_own(vectors)
                part.step([gradient if flags is None or flags[n] else None for n, gradient in enumerate(parts)])

            self._server = _ServerThread(
                Server(
                    requests,
                    replies,
                    rule_of(exchange, comm.workers),
                    specs,
                    update,
                    lambda: shards.pack_own(dict(enumerate(part.read()))),
                    exchange.delay_compensation,
                )
            )
        self._client: Client | None = None
        if not comm.is_server:
            self._client = Client(requests, replies, owners, exchange.push_every, exchange.pull_every)

    @property
    def client(self) -> Client:
        """This worker's way to the servers.

        Raises:
            EasyScaleError: If this rank is no worker: it only serves.
        """
        if self._client is None:
            raise EasyScaleError(f"a rank that only serves makes no steps. Received: rank {self._communicator.rank}")
        return self._client

    def step(self, gradients: Mapping[int, Any], variables: Sequence[Variable], weight: Any, rate: Any) -> None:
        """Push gradients and renew the variables, in a step.

        Args:
            gradients: Dense gradients, by the number of their variable.
            variables: All variables.
            weight: Scalar tensor or number. The number of samples in the gradients.
            rate: Scalar tensor or number. The learning rate.
        """
        numbers = list(gradients)
        absent: dict[int, np.ndarray | float] = {
            number: 0.0 for number in range(len(variables)) if number not in gradients
        }
        flags = np.array([number in gradients for number in range(len(variables))], np.uint8) if absent else None
        keeps = self._exchange.pull_every > 1  # the worker goes down its own gradients between pulls

        def call(weight: np.ndarray, rate: np.ndarray, *arrays: np.ndarray) -> list[np.ndarray]:
            if self._server is not None:
                self._server.check()
            buckets = self._shards.buckets
            vectors, weights = (lend(buckets, self._exchange) for _ in range(2))
            local: dict[int, np.ndarray | float] = dict(zip(numbers, arrays, strict=False))
            for bucket, vector in zip(buckets, vectors, strict=True):
                bucket.pack(local | absent, vector, 1.0)
            if not self.client.step(vectors, weights, float(weight), float(rate), flags):
                own = dict(enumerate(arrays[len(numbers) :]))
                for bucket, vector, into in zip(buckets, vectors, weights, strict=True):
                    bucket.pack(own, into, 1.0)
                    into -= into.dtype.type(rate) * vector
            wholes: dict[int, np.ndarray] = {}
            for bucket, vector in zip(buckets, weights, strict=True):
                wholes |= bucket.unpack(vector)
            return [wholes[number] for number in range(len(wholes))]

        inputs = [weight, rate, *gradients.values(), *(variables if keeps else ())]
        values = self._shared.call(call, inputs, specs_of(variables))
        for variable, value in zip(variables, values, strict=True):
            self._shared.backend.assign(variable, value)

    # An epoch

    def begin_epoch(self) -> None:
        """Start to serve, if this rank does, beside whatever else it does.

        All ranks must call this, with the same weights, which a callback may have set.
        """
        self.in_epoch = True
        self._part.take()
        if self._client is not None:
            self._client.begin_epoch()
        if self._server is not None:
            self._server.start()

    def end_epoch(self, stop: bool) -> bool:
        """Return when no worker has data in this epoch any more: whether any has said that training stops.

        Args:
            stop: Bool. Whether this worker says so.
        """
        if self._client is not None:
            self._client.end_epoch(stop)
        if self._server is None:
            return self.client.stop
        self._server.join()
        return self._server.server.stop

    def shrink(self, lost: Sequence[int]) -> dict[int, int]:
        """Go on without these workers, which have failed; return how many steps of this epoch each had made.

        All ranks that are left must call this, between epochs, when the exchange's communicator has new numbers.
        """
        for stream in self._streams:
            stream.membership.regroup()
        self._shards.shrink(lost)
        made: dict[int, int] = {}
        if self._client is not None:
            self._client.shrink(lost)
        if self._server is not None:
            made = dict(self._server.server.lost)
            self._server.server.shrink(lost)
        all_ranks = [counts for counts in self._communicator.all_gather_object(list(made.items())) if counts]
        return {worker: steps for counts in all_ranks for worker, steps in counts}

    def collect(self) -> list[np.ndarray]:
        """Return the whole variables, flat, behind `end_epoch`. All ranks must call this alike."""
        self.in_epoch = False
        return [self._shards.collect(number, part) for number, part in enumerate(self._part.read())]

    def staleness(self) -> list[Staleness]:
        """Return what each server has counted in the last epoch. All ranks must call this alike."""
        local = self._server and self._server.server.rule.staleness.to_json()
        return [
            Staleness.from_json(found) for found in self._communicator.all_gather_object(local) if found is not None
        ]
