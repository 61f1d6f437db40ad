"""What "auto" stands for: the exchange and the size of buckets that are fastest for a model's own gradients."""

import statistics
import time
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from easyscale import exchange as exchanges
from easyscale.errors import EasyScaleWarning, SharedMemoryError
from easyscale.exchange import Exchange
from easyscale.layout import bucket
from easyscale.layout.specs import Spec

__all__ = ["Choice", "Timing", "choose"]

SHORT_BYTES = 1_000_000  # below, an exchange takes less time than the rest of a step, and nothing is measured
REPEATS, BUDGET = 3, 0.5  # each is measured so often, or for so many seconds, after once that does not count
FASTER = 1.3  # so many times as fast has to be what is not usual for the nodes, so that each run chooses alike
BUCKETS = [1 << 22, 1 << 24, 1 << 26]  # between nodes
SLOWER = 1.25  # so many times the least time may buckets take: the backward pass hides more than that


class Timing(NamedTuple):
    """How long one way to exchange the gradients of a step takes while nothing else is done.

    Attributes:
        exchange: String. The exchange's name.
        bucket_bytes: Int or `None`. See `bucket.plan`.
        seconds: Float. The median, of the slowest rank.
    """

    exchange: str
    bucket_bytes: int | None
    seconds: float


class Choice(NamedTuple):
    """An exchange, and why it.

    Attributes:
        exchange: The connected `Exchange`.
        bucket_bytes: Int or `None`. See `bucket.plan`.
        timings: List of `Timing`, of all that was tried.
        reason: String. One line for the user, or nothing if there was no choice.
    """

    exchange: Exchange
    bucket_bytes: int | None
    timings: list[Timing]
    reason: str


def choose(exchange: Exchange, specs: Sequence[Spec], fixed: bool, bucket_bytes: int | None = None) -> Choice:
    """Choose what is left open. All ranks must call this alike, and get the same answer.

    On one node gradients travel in one vector: no rank waits for a network while it could compute. Between nodes they
    travel in the smallest buckets that take little more time than one vector, while the backward pass goes on.

    Args:
        exchange: The connected `Exchange` that is usual for the nodes, or the one that has been asked for.
        specs: `Spec` of each gradient.
        fixed: Bool. Whether it has been asked for.
        bucket_bytes: Int. Defaults to `None`: what is found here.

    Raises:
        SharedMemoryError: If a node has no room for an exchange that has been asked for.
    """
    nbytes = sum(one.length * one.dtype.itemsize for one in bucket.plan(specs))
    timings: list[Timing] = []
    problem = None if fixed else _room(exchange, specs, bucket_bytes)
    if problem or (not fixed and nbytes >= SHORT_BYTES):
        usual = exchange
        exchange, timings = _fastest(usual, specs, bucket_bytes, is_usable=not problem)
        if problem and usual.communicator.rank == 0:
            warnings.warn(
                f"the exchange '{exchange.name}' is used instead of '{usual.name}': {problem}",
                EasyScaleWarning,
                stacklevel=2,
            )
    if bucket_bytes is None and len(exchange.communicator.nodes) > 1 and nbytes >= SHORT_BYTES:
        sizes = [size for size in BUCKETS if size < nbytes]
        pieces = [_measure(exchange, specs, size) for size in [*sizes, None]]
        timings = [*pieces, *(one for one in timings if one.exchange != exchange.name)]
        enough = SLOWER * min(one.seconds for one in pieces)
        bucket_bytes = next(one.bucket_bytes for one in pieces if one.seconds <= enough)
    return Choice(exchange, bucket_bytes, timings, _explain(exchange, bucket_bytes, nbytes, timings))


def _fastest(
    usual: Exchange, specs: Sequence[Spec], bucket_bytes: int | None, is_usable: bool
) -> tuple[Exchange, list[Timing]]:
    """Return the usual exchange, or another that takes clearly less time, and how long each takes."""
    others = [one for one in exchanges.candidates(usual.communicator) if one.name != usual.name]
    timings: dict[Exchange, Timing] = {}
    for one in [usual, *others] if is_usable else others:
        if one is usual or not _room(one, specs, bucket_bytes):
            least = min((timing.seconds for timing in timings.values()), default=None)
            timings[one] = _measure(one, specs, bucket_bytes, least)
    fastest = min(timings, key=lambda one: timings[one].seconds)
    if is_usable and timings[usual].seconds <= FASTER * timings[fastest].seconds:
        fastest = usual
    return fastest, list(timings.values())


def _room(exchange: Exchange, specs: Sequence[Spec], bucket_bytes: int | None) -> str | None:
    """Return why some node has no room for the vectors of a step, or `None` if all have."""
    problem = None
    try:
        _lend(exchange, specs, bucket_bytes)
    except SharedMemoryError as error:
        problem = str(error)
    return next(filter(None, exchange.communicator.all_gather_object(problem)), None)


def _lend(exchange: Exchange, specs: Sequence[Spec], bucket_bytes: int | None) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return for each bucket a vector for the gradients, and one for the weights, which take turns in two."""
    buckets = bucket.plan(specs, bucket_bytes)
    for one in buckets:
        one.round_up(exchange.communicator.size)
    gradients, _, weights, _ = bucket.lend_for_a_step(buckets, exchange)
    return list(zip(gradients, weights, strict=True))


def _measure(exchange: Exchange, specs: Sequence[Spec], bucket_bytes: int | None, least: float | None = None) -> Timing:
    """Return how long an exchange takes; roughly, if it is far from the `least` seconds that another takes."""
    communicator = exchange.communicator
    vectors = _lend(exchange, specs, bucket_bytes)
    for gradients, _ in vectors:
        gradients[:] = 0
    times = []
    while True:
        communicator.barrier()
        start = time.perf_counter()
        for gradients, weights in vectors:
            exchange.reduce(gradients)
            exchange.gather(weights)
        times.append(max(communicator.all_gather_object(time.perf_counter() - start)))
        hopeless = least is not None and times[-1] > 3 * FASTER * least
        if len(times) > REPEATS or sum(times) > BUDGET or hopeless:
            return Timing(exchange.name, bucket_bytes, statistics.median(times[1:] or times))


def _explain(exchange: Exchange, bucket_bytes: int | None, nbytes: int, timings: list[Timing]) -> str:
    own = next((one for one in timings if (one.exchange, one.bucket_bytes) == (exchange.name, bucket_bytes)), None)
    if own is None:
        return ""
    others = [one for one in timings if one is not own]
    names = [_pieces(one.bucket_bytes) if one.exchange == own.exchange else one.exchange for one in others]
    times = "".join(f", {name} {1e3 * one.seconds:.3g} ms" for name, one in zip(names, others, strict=True))
    chosen = f"exchange '{own.exchange}', {_pieces(bucket_bytes)}: {nbytes / 1e6:.0f} MB in {1e3 * own.seconds:.3g} ms"
    return chosen + times


def _pieces(bucket_bytes: int | None) -> str:
    return "one vector" if bucket_bytes is None else f"buckets of {bucket_bytes / 1e6:.0f} MB"
