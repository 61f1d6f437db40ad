"""Collectives built from point-to-point messages.

A communicator whose library has better ones overrides them.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from easyscale.communicator.communicator import Communicator

__all__ = ["all_gather", "all_gather_parts", "all_gather_rows", "broadcast", "reduce_scatter"]


def all_gather_rows(communicator: "Communicator", row: np.ndarray) -> np.ndarray:
    """Return every rank's `row`, by the algorithm of Bruck et al. (1997): `ceil(log2 P)` messages, `P - 1` rows."""
    rank, size = communicator.rank, communicator.size
    rows = np.empty((size, *row.shape), row.dtype)
    rows[0] = row  # row i is that of rank (rank + i) % size until the end
    have = 1
    while have < size:
        count = min(have, size - have)
        arriving = communicator.ireceive(rows[have : have + count], (rank + have) % size)
        communicator.send(rows[:count], (rank - have) % size)
        arriving.wait()
        have += count
    return np.roll(rows, rank, axis=0)


def all_gather_parts(communicator: "Communicator", part: np.ndarray, counts: Sequence[int]) -> np.ndarray:
    """Return every rank's `part`, concatenated: each part goes directly to every other rank."""
    rank = communicator.rank
    ends = np.concatenate([[0], np.cumsum(counts)]).astype(int)
    whole = np.empty((ends[-1], *part.shape[1:]), part.dtype)
    whole[ends[rank] : ends[rank + 1]] = part
    all_gather(communicator, whole.reshape(-1), ends * math.prod(part.shape[1:]))
    return whole


def broadcast(communicator: "Communicator", buffer: np.ndarray, root: int) -> None:
    """Overwrite every rank's `buffer` with that of rank `root`, down a binomial tree."""
    size = communicator.size
    virtual = (communicator.rank - root) % size
    mask = 1
    while mask < size and not virtual & mask:
        mask <<= 1
    if virtual:
        communicator.receive(buffer, (virtual - mask + root) % size)
    requests = []
    while (mask := mask >> 1) > 0:
        if virtual + mask < size:
            requests.append(communicator.isend(buffer, (virtual + mask + root) % size))
    for request in requests:
        request.wait()


def reduce_scatter(communicator: "Communicator", buffer: np.ndarray, bounds: np.ndarray) -> None:
    """Overwrite this rank's part of `buffer` with its sum: every part goes directly to its rank.

    Parts are added in rank order.
    """
    own = communicator.rank
    parts = [buffer[a:b] for a, b in zip(bounds[:-1], bounds[1:], strict=True)]
    others = [rank for rank in range(communicator.size) if rank != own]
    arrived = {rank: np.empty_like(parts[own]) for rank in others}
    requests = [communicator.ireceive(arrived[rank], rank) for rank in others]
    requests += [communicator.isend(parts[rank], rank) for rank in others]
    for request in requests:
        request.wait()
    arrived[own] = parts[own].copy()
    parts[own][:] = arrived[0]
    for rank in range(1, communicator.size):
        parts[own] += arrived[rank]


def all_gather(communicator: "Communicator", buffer: np.ndarray, bounds: np.ndarray) -> None:
    """Send this rank's part of `buffer` to every other rank's `buffer`."""
    parts = [buffer[a:b] for a, b in zip(bounds[:-1], bounds[1:], strict=True)]
    others = [rank for rank in range(communicator.size) if rank != communicator.rank]
    requests = [communicator.ireceive(parts[rank], rank) for rank in others]
    requests += [communicator.isend(parts[communicator.rank], rank) for rank in others]
    for request in requests:
        request.wait()
