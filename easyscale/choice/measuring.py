"""How long a step's gradients take on their way: what choices between ways have in common."""

import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np

from easyscale.communicator import Communicator
from easyscale.exchange import Exchange
from easyscale.layout import bucket
from easyscale.layout.specs import Spec

__all__ = ["FASTER", "SHORT_BYTES", "bytes_of", "seconds_of", "vectors_of_a_step"]

SHORT_BYTES = 1_000_000  # below, an exchange takes less time than the rest of a step, and nothing is measured
FASTER = 1.3  # so many times as fast has to be what is not usual, so that each run chooses alike
_REPEATS, _BUDGET = 3, 0.5  # each is measured so often, or for so many seconds, after once that does not count


def bytes_of(specs: Sequence[Spec]) -> int:
    """Return the bytes of the vectors in which these gradients travel."""
    return sum(planned.length * planned.dtype.itemsize for planned in bucket.plan(specs))


def vectors_of_a_step(
    exchange: Exchange, specs: Sequence[Spec], bucket_bytes: int | None
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return for each bucket a vector for the gradients, and one for the weights, which take turns in two."""
    buckets = bucket.plan(specs, bucket_bytes)
    for planned in buckets:
        planned.round_up(exchange.communicator.size)
    gradients, _, weights, _ = bucket.lend_for_a_step(buckets, exchange)
    return list(zip(gradients, weights, strict=True))


def seconds_of(step: Callable[[], None], communicator: Communicator, least: float | None = None) -> float:
    """Return how long what all ranks do together takes: the median, of the slowest rank. All must call this alike.

    Args:
        step: Function without arguments.
        communicator: The `Communicator`.
        least: Float. The seconds that something else takes: what is far from them is measured roughly. Defaults to
            `None`: there is nothing else yet.
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
