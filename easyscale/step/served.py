"""Weights owned by servers, which may change them at any time."""

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
    """The weights owned by a server that does not wait for all workers, and their update."""

    def step(self, gradients: list[Any]) -> None:
        """Update the weights by gradients of the owned parts, by number; `None` where there is none."""

    def read(self) -> list[np.ndarray]:
        """Return this rank's parts of the variables, by number."""

    def take(self) -> None:
        """Start from the weights that this rank has as a worker."""

    def set_rate(self, rate: float) -> None:
        """Use the chief's learning rate."""


class _ServerThread:
    """A server in a background thread of its rank.

    Attributes:
        server: The `Server`.
        failure: The exception that it raised, or `None`.
    """

    _thread: threading.Thread  # of the epoch that was started last

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
        """Raise the exception that the server has raised, if any."""
        if self.failure is not None:
            raise self.failure

    def _serve(self) -> None:
        try:
            self.server.serve()
        except BaseException as error:
            self.failure = error
            sys.excepthook(*sys.exc_info())  # ends all ranks, which wait for this one's answers


class Served:
    """The servers of one optimizer: a worker's client, and this rank's own server if it is one.

    Args:
        exchange: A connected `ParameterServer` that is not synchronous.
        shared: The `Shared` of its communicator.
        shards: The `Shards` of the variables.
        part: The `OwnedWeights` of this rank.

    Attributes:
        in_epoch: Bool. Whether servers have weights that ranks have not collected yet.
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
                if rate is not None and comm.rank > 0:  # the chief has it, and may have changed it since
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
        """This worker's client of the servers.

        Raises:
            EasyScaleError: If this rank only serves.
        """
        if self._client is None:
            raise EasyScaleError(f"a rank that only serves makes no steps. Received: rank {self._communicator.rank}")
        return self._client

    def step(self, gradients: Mapping[int, Any], variables: Sequence[Variable], weight: Any, rate: Any) -> None:
        """Push gradients and update the variables, in a step.

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
        keeps = self._exchange.pull_every > 1  # between pulls, the worker applies its own gradients

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
        """Start an epoch, and this rank's server, if it has one, in the background.

        All ranks must call this, with the same weights, which a callback may have set.
        """
        self.in_epoch = True
        self._part.take()
        if self._client is not None:
            self._client.begin_epoch()
        if self._server is not None:
            self._server.start()

    def end_epoch(self, stop: bool) -> bool:
        """End an epoch; return whether servers report that a worker has asked to stop training.

        A rank that serves first waits until no worker has data left in this epoch.

        Args:
            stop: Bool. Whether this worker asks to stop.
        """
        if self._client is not None:
            self._client.end_epoch(stop)
        if self._server is None:
            return self.client.stop
        self._server.join()
        return self._server.server.stop

    def shrink(self, lost: Sequence[int]) -> dict[int, int]:
        """Continue without these failed workers; return the number of steps that each had made in this epoch.

        All remaining ranks must call this, between epochs, after the exchange's communicator has renumbered them.
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
        """Return the whole variables, flat, after `end_epoch`. All ranks must call this the same way."""
        self.in_epoch = False
        return [self._shards.collect(number, part) for number, part in enumerate(self._part.read())]

    def staleness(self) -> list[Staleness]:
        """Return the `Staleness` that each server has counted in the last epoch. All ranks must call this."""
        local = self._server and self._server.server.rule.staleness.to_json()
        return [
            Staleness.from_json(found) for found in self._communicator.all_gather_object(local) if found is not None
        ]
