"""The choice made by exchange="auto": the exchange and bucket size that are fastest for a model's own gradients."""

import warnings
from collections.abc import Sequence
from typing import NamedTuple

from easyscale import exchange as exchanges
from easyscale.choice.measuring import FASTER, SHORT_BYTES, bytes_of, seconds_of, vectors_of_a_step
from easyscale.communicator.data_axis import everyone_of
from easyscale.errors import EasyScaleWarning, SharedMemoryError
from easyscale.exchange import Exchange
from easyscale.layout.specs import Spec

__all__ = ["Choice", "Timing", "choose"]

BUCKETS = [1 << 22, 1 << 24, 1 << 26]  # between nodes
SLOWER = 1.25  # buckets may take up to this multiple of the least time: the backward pass hides more than that


class Timing(NamedTuple):
    """The time of one way to exchange the gradients of a step, with nothing else running.

    Attributes:
        exchange: String. The exchange's name.
        bucket_bytes: Int or `None`. See `bucket.plan`.
        seconds: Float. The median, on the slowest rank.
    """

    exchange: str
    bucket_bytes: int | None
    seconds: float


class Choice(NamedTuple):
    """An exchange, and the reason for it.

    Attributes:
        exchange: The connected `Exchange`.
        bucket_bytes: Int or `None`. See `bucket.plan`.
        timings: List of `Timing`, one for each candidate.
        reason: String. One line for the user, or `""` if there was no choice.
    """

    exchange: Exchange
    bucket_bytes: int | None
    timings: list[Timing]
    reason: str


def choose(exchange: Exchange, specs: Sequence[Spec], fixed: bool, bucket_bytes: int | None = None) -> Choice:
    """Choose what the user has left open. All ranks must call this together, and get the same answer.

    On one node gradients are sent in one vector: no rank waits for a network while it could compute. Between nodes they
    are sent during the backward pass, in the smallest buckets that take little more time than one vector.

    Args:
        exchange: The connected `Exchange`: the default for these nodes, or the one that was requested.
        specs: `Spec` of each gradient.
        fixed: Bool. Whether it was requested.
        bucket_bytes: Int. Defaults to `None`: chosen here.

    Raises:
        SharedMemoryError: If a node has too little memory for a requested exchange.
    """
    nbytes = bytes_of(specs)
    timings: list[Timing] = []
    problem = None if fixed else _room(exchange, specs, bucket_bytes)
    if problem or (not fixed and nbytes >= SHORT_BYTES):
        usual = exchange
        exchange, timings = _fastest(usual, specs, bucket_bytes, is_usable=not problem)
        if problem and usual.communicator.is_chief:
            warnings.warn(
                f"the exchange '{exchange.name}' is used instead of '{usual.name}': {problem}",
                EasyScaleWarning,
                stacklevel=2,
            )
    if bucket_bytes is None and len(exchange.communicator.nodes) > 1 and nbytes >= SHORT_BYTES and not exchange.on_gpus:
        sizes = [size for size in BUCKETS if size < nbytes]
        pieces = [_measure(exchange, specs, size) for size in [*sizes, None]]
        timings = [*pieces, *(timing for timing in timings if timing.exchange != exchange.name)]
        enough = SLOWER * min(timing.seconds for timing in pieces)
        bucket_bytes = next(timing.bucket_bytes for timing in pieces if timing.seconds <= enough)
    if (workers := exchange.communicator) is not everyone_of(workers):  # ranks of a group must sum the same way
        name, bucket_bytes = everyone_of(workers).all_gather_object([exchange.name, bucket_bytes])[0]
        exchange = exchange if name == exchange.name else exchanges.get(name, workers)
    return Choice(exchange, bucket_bytes, timings, _explain(exchange, bucket_bytes, nbytes, timings))


def _fastest(
    usual: Exchange, specs: Sequence[Spec], bucket_bytes: int | None, is_usable: bool
) -> tuple[Exchange, list[Timing]]:
    """Return the default exchange, or another that takes clearly less time, and the timings of all."""
    others = [candidate for candidate in exchanges.candidates(usual.communicator) if candidate.name != usual.name]
    timings: dict[Exchange, Timing] = {}
    for candidate in [usual, *others] if is_usable else others:
        if candidate is usual or not _room(candidate, specs, bucket_bytes):
            least = min((timing.seconds for timing in timings.values()), default=None)
            timings[candidate] = _measure(candidate, specs, bucket_bytes, least)
    fastest = min(timings, key=lambda candidate: timings[candidate].seconds)
    if is_usable and timings[usual].seconds <= FASTER * timings[fastest].seconds:
        fastest = usual
    return fastest, list(timings.values())


def _room(exchange: Exchange, specs: Sequence[Spec], bucket_bytes: int | None) -> str | None:
    """Return the reason why some node has too little memory for a step's vectors, or `None` if all have enough."""
    problem = None
    try:
        vectors_of_a_step(exchange, specs, bucket_bytes)
    except SharedMemoryError as error:
        problem = str(error)
    return next(filter(None, exchange.communicator.all_gather_object(problem)), None)


def _measure(exchange: Exchange, specs: Sequence[Spec], bucket_bytes: int | None, least: float | None = None) -> Timing:
    """Return an exchange's timing: a rough one, if it is much slower than the `least` seconds of another."""
    vectors = vectors_of_a_step(exchange, specs, bucket_bytes)
    for gradients, _ in vectors:
        gradients[:] = 0

    def step() -> None:
        for gradients, weights in vectors:
            exchange.reduce(gradients)
            exchange.gather(weights)

    return Timing(exchange.name, bucket_bytes, seconds_of(step, exchange.communicator, least))


def _explain(exchange: Exchange, bucket_bytes: int | None, nbytes: int, timings: list[Timing]) -> str:
    own = next(
        (timing for timing in timings if (timing.exchange, timing.bucket_bytes) == (exchange.name, bucket_bytes)), None
    )
    if own is None:
        return ""
    others = [timing for timing in timings if timing is not own]
    names = [_pieces(timing.bucket_bytes) if timing.exchange == own.exchange else timing.exchange for timing in others]
    times = "".join(f", {name} {1e3 * timing.seconds:.3g} ms" for name, timing in zip(names, others, strict=True))
    chosen = f"exchange '{own.exchange}', {_pieces(bucket_bytes)}: {nbytes / 1e6:.0f} MB in {1e3 * own.seconds:.3g} ms"
    return chosen + times


def _pieces(bucket_bytes: int | None) -> str:
    return "one vector" if bucket_bytes is None else f"buckets of {bucket_bytes / 1e6:.0f} MB"
