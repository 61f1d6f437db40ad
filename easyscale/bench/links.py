"""Latency and bandwidth between each pair of ranks."""

import statistics
import time
from typing import NamedTuple

import numpy as np

from easyscale.communicator import Communicator

__all__ = ["Link", "measure"]

_ROUNDS = 50  # round trips of the shortest message
_REPEATS = 3  # round trips of each long message
_LEAST, _MOST = 1 << 20, 1 << 26  # bytes of the first and of the longest long message
_ENOUGH = 0.05  # seconds; a message that takes as long is the last


class Link(NamedTuple):
    """The connection between two ranks.

    Attributes:
        ranks: The two ranks.
        latency: Float. One-way seconds of the shortest message.
        bandwidth: Float. Bytes per second of a long message, in the slower direction.
    """

    ranks: tuple[int, int]
    latency: float
    bandwidth: float


def measure(communicator: Communicator) -> list[Link]:
    """Measure the link between each two ranks, one pair at a time. Collective: all ranks call this.

    Raises:
        PeerError: If a rank has left or failed.
    """
    found = []
    for first in range(communicator.size):
        for second in range(first + 1, communicator.size):
            communicator.barrier()
            if communicator.rank in (first, second):
                other = first + second - communicator.rank
                latency = _latency(communicator, other, begins=communicator.rank == first)
                rates = [_bandwidth(communicator, other, communicator.rank == one) for one in (first, second)]
                found.append([first, second, latency, min(rates)])
    all_ranks = communicator.all_gather_object(found)
    of_first = [link for rank, links in enumerate(all_ranks) for link in links if link[0] == rank]
    return [Link((first, second), latency, bandwidth) for first, second, latency, bandwidth in of_first]


def _latency(communicator: Communicator, other: int, begins: bool) -> float:
    """Return half of the median round-trip time."""
    message, taken = np.zeros(1), []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        if begins:
            communicator.send(message, other)
        communicator.receive(message, other)
        if not begins:
            communicator.send(message, other)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken) / 2


def _bandwidth(communicator: Communicator, other: int, sends: bool) -> float:
    """Return the bytes per second of the longest message sent, on both ranks."""
    nbytes, said, answer = _LEAST, np.zeros(2), np.ones(1, np.uint8)  # said: seconds, and whether a longer one follows
    while True:
        message, taken = np.ones(nbytes, np.uint8), []
        for _ in range(_REPEATS):
            start = time.perf_counter()
            if sends:
                communicator.send(message, other)
                communicator.receive(answer, other)
            else:
                communicator.receive(message, other)
                communicator.send(answer, other)
            taken.append(time.perf_counter() - start)
        if sends:
            said[:] = min(taken), min(taken) < _ENOUGH and nbytes < _MOST
            communicator.send(said, other)
        else:
            communicator.receive(said, other)
        if not said[1]:
            return nbytes / float(said[0])
        nbytes *= 2
