"""Clock offsets between ranks."""

import time
from collections.abc import Callable

import numpy as np

from easyscale.communicator.communicator import Communicator

__all__ = ["offsets"]


def offsets(communicator: Communicator, clock: Callable[[], float] = time.time, rounds: int = 16) -> list[float]:
    """Return the number of seconds by which each rank's clock is ahead of rank 0's. All ranks must call this.

    Rank 0 asks each other rank for its time and assumes that it is the time halfway through the round trip. Of several
    round trips the shortest counts: its error is at most half its duration.

    Args:
        communicator: The `Communicator`.
        clock: Function. Returns this rank's time in seconds. Defaults to `time.time`.
        rounds: Int. The number of round trips to each rank. Defaults to `16`.

    Example:

    >>> import easyscale.communicator
    >>> offsets(easyscale.communicator.get("local"))
    [0.0]

    Reference: Cristian, "Probabilistic clock synchronization", 1989.
    """
    answer = np.zeros(1)
    found = [0.0] * communicator.size
    for rank in range(1, communicator.size):
        if communicator.rank == 0:
            found[rank] = min(_asked(communicator, clock, rank, answer) for _ in range(rounds))[1]
        elif communicator.rank == rank:
            for _ in range(rounds):
                communicator.receive(answer, 0)
                answer[0] = clock()
                communicator.send(answer, 0)
    return communicator.all_gather_object(found)[0]


def _asked(
    communicator: Communicator, clock: Callable[[], float], rank: int, answer: np.ndarray
) -> tuple[float, float]:
    """Return the duration of a round trip to a rank, and the number of seconds by which its clock is ahead."""
    begin = clock()
    communicator.send(answer, rank)
    communicator.receive(answer, rank)
    end = clock()
    return end - begin, float(answer[0]) - (begin + end) / 2
