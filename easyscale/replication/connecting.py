"""How an optimizer comes to all workers: with the same exchange, replication and update on each of them."""

from typing import Any

from easyscale import backend as backends
from easyscale import exchange as exchanges
from easyscale import replication as replications
from easyscale.backend.base import Backend, Feature
from easyscale.communicator import Communicator
from easyscale.errors import DesyncError
from easyscale.exchange import Exchange
from easyscale.replication.replication import Replication
from easyscale.step.agreement import Purpose
from easyscale.step.current_step import CurrentStep
from easyscale.step.gradients import Gradients
from easyscale.step.shared import Shared
from easyscale.step.step_protocol import Steps

__all__ = ["connect"]


def connect(
    exchange: str | Exchange | type[Exchange] | None,
    replication: str | None,
    update: str | None,
    bucket_bytes: int | None,
    communicator: str | Communicator | None,
    densify: bool,
) -> Replication:
    """Return all workers as one of them sees them. All must call this alike.

    Args:
        exchange: See `DistributedOptimizer`, as `replication`, `update`, `bucket_bytes` and `communicator`.
        densify: Bool. Whether sparse gradients may travel as dense ones where that is less.

    Raises:
        ValueError: If the backend has no such workers.
        DesyncError: If workers were given different exchanges, replications, updates or sizes of buckets, or Keras has
            different backends.
    """
    backend, name = backends.get(), replications.check(replication)
    kind = replications.get(name)
    asked = exchanges.asked(exchange)
    connected = exchanges.get(kind.between_processes(asked), communicator)
    _require(backend, connected)
    asked_name = None if asked == "auto" else asked if isinstance(asked, str) else asked.name
    own = [connected.name, name, update or "auto", bucket_bytes, backend.name]
    chosen = [own]
    if not connected.communicator.membership.is_joining:  # else it takes what the others have chosen
        Shared.of(connected.communicator, backend).meet(Purpose.BEGIN)
        chosen = connected.communicator.all_gather_object(own)
    if any(other != chosen[0] for other in chosen):
        differs = next(rank for rank, other in enumerate(chosen) if other != chosen[0])
        raise DesyncError(
            "all ranks must use the same exchange, replication, update, bucket_bytes and Keras backend. Received: "
            f"{chosen[0]} on rank 0, {chosen[differs]} on rank {differs}. Start all ranks with one command"
        )
    return kind.apart(lambda: _assemble(kind, connected, bucket_bytes, densify, asked_name))


def _require(backend: Backend, exchange: Exchange) -> None:
    """Raise `ValueError` if the backend has no such workers."""
    communicator = exchange.communicator
    for feature, is_asked in (
        (Feature.SERVED, not exchange.is_synchronous),
        (Feature.SERVERS, communicator.servers > 0),
        (Feature.ELASTIC, communicator.membership.is_elastic),
    ):
        if is_asked:
            backend.require(feature)


def _assemble(kind: Any, exchange: Exchange, bucket_bytes: int | None, densify: bool, asked: str | None) -> Replication:
    communicator, backend = exchange.communicator, backends.get()
    step = CurrentStep(weight=0.0 if communicator.is_server else 1.0)
    replicas = kind(exchange, step, backend, asked)
    shared = Shared.of(communicator, backend)
    compiled = backend.compiled_update(communicator, replicas.has_copies)
    gradients = Gradients(exchange, shared, bucket_bytes, densify, asked is not None, compiled)
    steps = Steps(communicator, shared, gradients)
    return Replication(communicator, gradients, replicas.batch(shared), steps, replicas, step)
