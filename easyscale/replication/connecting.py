"""Connects an optimizer to all workers, with the same exchange, replication and update on each of them."""

import contextlib
import warnings
from typing import Any

from easyscale import backend as backends
from easyscale import compression as compressions
from easyscale import exchange as exchanges
from easyscale import replication as replications
from easyscale.backend.base import Backend
from easyscale.communicator import Communicator
from easyscale.compression import Compression, Form
from easyscale.errors import DesyncError, EasyScaleWarning
from easyscale.exchange import Exchange
from easyscale.exchange.between_gpus import between_gpus
from easyscale.exchange.on_gpus import OnGpus, for_gpus
from easyscale.exchange.registry import name_of
from easyscale.replication.replication import Replication
from easyscale.settings import Settings
from easyscale.step.agreement import Purpose
from easyscale.step.compressed_sums import CompressedSums
from easyscale.step.context import CurrentStep
from easyscale.step.gradients import Gradients
from easyscale.step.reduce_config import FormToChoose, ReduceConfig
from easyscale.step.shared import Shared
from easyscale.step.steps import Steps

__all__ = ["connect"]


def connect(
    exchange: str | Exchange | type[Exchange] | None,
    replication: str | None,
    update: str | None,
    bucket_bytes: int | None,
    communicator: str | Communicator | None,
    densify: bool,
    compression: Form = None,
) -> Replication:
    """Connect to all workers; return them as a `Replication`. All workers must call this the same way.

    Args:
        exchange: See `DistributedOptimizer`, as for `replication`, `update`, `bucket_bytes` and `communicator`.
        densify: Bool. Whether sparse gradients may be sent as dense ones where that is fewer bytes.
        compression: `Compression`, or `"auto"`. The codec of gradients. Defaults to `None`: they are not compressed.

    Raises:
        ValueError: If the backend does not support the replication or the exchange, or the exchange the codec.
        DesyncError: If workers have different exchanges, replications, updates, codecs, bucket sizes or Keras
            backends.
    """
    backend, name = backends.get(), replications.check(replication)
    kind = replications.get(name)
    asked = exchanges.asked(exchange)
    connected = exchanges.get(kind.between_processes(asked), communicator)
    if asked == "auto" and compression is None and backend.computes_on_gpus():
        connected = between_gpus(connected)
    _require(backend, connected)
    _check_form(compression, connected)
    if exchange is not None:
        _tell_of_unheard(name_of(exchange), connected.communicator)
    asked_name = None if asked == "auto" else asked if isinstance(asked, str) else asked.name
    own = [connected.name, name, update or "auto", compression and repr(compression), bucket_bytes, backend.name]
    chosen = [own]
    if not connected.communicator.membership.is_joining:  # a joining worker takes the others' choice
        Shared.of(connected.communicator, backend).meet(Purpose.BEGIN)
        chosen = connected.communicator.all_gather_object(own)
    if any(other != chosen[0] for other in chosen):
        differs = next(rank for rank, other in enumerate(chosen) if other != chosen[0])
        raise DesyncError(
            "all ranks must use the same exchange, replication, update, compression, bucket_bytes and Keras backend. "
            "Received: "
            f"{chosen[0]} on rank 0, {chosen[differs]} on rank {differs}. Start all ranks with one command"
        )
    if backend.computes_on_gpus():
        connected = for_gpus(connected)
    return kind.apart(lambda: _assemble(kind, connected, bucket_bytes, densify, asked_name, compression, update))


def _tell_of_unheard(named: str, communicator: Communicator) -> None:
    """Warn, on the chief, if the user has requested another exchange than the script, which wins."""
    said = Settings.read(names=["exchange"]).exchange
    if said is None or not communicator.is_chief:
        return
    with contextlib.suppress(ValueError):  # an unknown name is an error only where the script names none
        said = name_of(said)
    if said != named:
        warnings.warn(
            "an exchange that the script names wins over that of `easyscale launch`. Received: "
            f"exchange='{named}' in the script, --exchange {said}. Leave it out of the script",
            EasyScaleWarning,
            stacklevel=2,
        )


def _require(backend: Backend, exchange: Exchange) -> None:
    """Raise `ValueError` if the exchange needs GPUs on which the backend does not compute."""
    communicator = exchange.communicator
    if isinstance(exchange, OnGpus) and communicator.size > 1 and not backend.computes_on_gpus():
        raise ValueError(
            f"the exchange '{exchange.name}' needs tensors on GPUs, of the backend torch or JAX. Received: "
            f"KERAS_BACKEND={backend.name}, which computes elsewhere here. Use 'auto', or look whether nvidia-smi and "
            "the backend see a GPU"
        )


def _check_form(form: Form, exchange: Exchange) -> None:
    """Raise `ValueError` if the exchange does not support the codec. `"auto"` chooses one that it supports."""
    if form is None or form == compressions.AUTO:
        return
    received = f"Received: compression={form.name!r}, exchange='{exchange.name}'"
    if not exchange.is_synchronous:
        raise ValueError(
            f"gradients for servers that do not wait for all workers travel as they are. {received}. Use "
            "'parameter_server', 'ring' or 'hierarchical', or leave `compression` out"
        )
    if form.keeps_error and exchange.communicator.servers:
        raise ValueError(
            f"error feedback needs ranks that all train. {received} and {exchange.communicator.servers} servers. Start "
            "without --servers, or use a form that keeps no error"
        )
    if not exchange.is_exact:
        raise ValueError(f"gradients travel in one form. {received}. Leave one of them out")
    if reason := form.why_not(exchange):
        raise ValueError(
            f"a form needs an exchange whose messages can have it. {received}; {reason}. Use 'ring' or 'hierarchical', "
            "or leave `compression` out"
        )


def _assemble(
    kind: Any,
    exchange: Exchange,
    bucket_bytes: int | None,
    densify: bool,
    asked: str | None,
    compression: Form,
    update: str | None,
) -> Replication:
    communicator, backend = exchange.communicator, backends.get()
    step = CurrentStep(weight=0.0 if communicator.is_server else 1.0)
    replicas = kind(exchange, step, backend, asked)
    shared = Shared.of(communicator, backend)
    compiled = backend.compiled_update(communicator, replicas.has_copies)

    def sums_in(form: Compression | None) -> CompressedSums | None:
        if form is None or communicator.size == 1:
            return None
        return CompressedSums(form, communicator, lambda: shared.agreement.count)

    forms, sums = None, None
    if compression == compressions.AUTO:
        forms = FormToChoose(sums_in, gathers=update != "sharded")
    else:
        sums = sums_in(compression)
    # "auto" times uncompressed gradients, which says nothing about compressed ones.
    fixed = asked is not None or sums is not None or exchange.on_gpus
    gradients = Gradients(ReduceConfig(exchange, bucket_bytes, fixed, sums, forms), shared, densify, compiled)
    steps = Steps(communicator, shared, gradients)
    return Replication(communicator, gradients, replicas.batch(shared), steps, replicas, step)
