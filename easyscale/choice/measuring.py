"""Timing of the exchange of a step's gradients, shared by all choices."""

import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np

from easyscale.communicator import Communicator
from easyscale.exchange import Exchange
from easyscale.layout import bucket
from easyscale.layout.specs import Spec

__all__ = ["FASTER", "SHORT_BYTES", "bytes_of", "seconds_of", "vectors_of_a_step"]

SHORT_BYTES = 1_000_000  # below this, an exchange takes less time than the rest of a step, and nothing is measured
FASTER = 1.3  # required speed-up over the default, so that every run makes the same choice
_REPEATS, _BUDGET = 3, 0.5  # measurements, or seconds, of each candidate, after a warm-up


def bytes_of(specs: Sequence[Spec]) -> int:
    """Return the bytes of the vectors in which these gradients are exchanged."""
    return sum(planned.length * planned.dtype.itemsize for planned in bucket.plan(specs))


def vectors_of_a_step(
    exchange: Exchange, specs: Sequence[Spec], bucket_bytes: int | None
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return, for each bucket, the first of its two vectors for gradients, and of its two for weights."""
    buckets = bucket.plan(specs, bucket_bytes)
    for planned in buckets:
        planned.round_up(exchange.communicator.size)
    gradients, _, weights, _ = bucket.lend_for_a_step(buckets, exchange)
    return list(zip(gradients, weights, strict=True))


def seconds_of(step: Callable[[], None], communicator: Communicator, least: float | None = None) -> float:
    """Return the median time of a collective operation on the slowest rank. All must call this together.

    Args:
        step: Function without arguments.
        communicator: The `Communicator`.
        least: Float. The seconds of the fastest alternative: a much slower one is measured only roughly. Defaults to
            `None`: there is no alternative yet.
    """
    times: list[float] = []
    while True:
        communicator.barrier()
        start = time.perf_counter()
        step()
        times.append(max(communicator.all_gather_object(time.perf_counter() - start)))
        hopeless = least is not None and times[-1] > 3 * FASTER * least
        if len(times) > _REPEATS or sum(times) > _BUDGET or hopeless:
            return statistics.median(times[1:] or times)
