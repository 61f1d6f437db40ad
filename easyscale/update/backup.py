"""Copies of each worker's part of the state at the next worker, in case the owner is lost. NumPy only."""

from collections.abc import Sequence

import numpy as np

from easyscale.communicator import Communicator
from easyscale.communicator.communicator import as_bytes
from easyscale.errors import PeerError

__all__ = ["Backup", "collect"]


class Backup:
    """A copy of the previous worker's part, as of the last `renew`.

    In `renew` each worker sends its part, one message per array, and receives an equal amount.

    Args:
        communicator: The `Communicator`. Its ranks are those by which the state was divided.
        held: List of arrays: the previous worker's part.
    """

    def __init__(self, communicator: Communicator, held: Sequence[np.ndarray]):
        self._communicator, self._held = communicator, list(held)
        self._rank, self.owners = communicator.rank, communicator.size

    @staticmethod
    def source(communicator: Communicator) -> int:
        """Return the rank of the previous worker."""
        return (communicator.rank - 1) % communicator.size

    def renew(self, own: Sequence[np.ndarray]) -> None:
        """Send this worker's part to the next. All workers must call this."""
        communicator = self._communicator
        source, following = self.source(communicator), (communicator.rank + 1) % communicator.size
        arriving = [np.empty_like(array) for array in self._held]
        requests = [communicator.ireceive(_bytes(array), source) for array in arriving if array.size]
        requests += [communicator.isend(_bytes(part), following) for part in own if part.size]
        for request in requests:
            request.wait()
        self._held = arriving

    def offers(self, own: Sequence[np.ndarray]) -> dict[int, Sequence[np.ndarray]]:
        """Return the parts at this worker, by the number of the owner: first its own, then the copy of another's."""
        return {self._rank: own, (self._rank - 1) % self.owners: self._held}


def collect(communicator: Communicator, backup: Backup | None, own: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
    """Return the parts of every owner, as bytes; for lost owners, the next worker's copies.

    All ranks must call this, with their current numbers.

    Args:
        communicator: The `Communicator`.
        backup: This rank's `Backup`, or `None` if it has just joined.
        own: List of arrays: this rank's part.

    Raises:
        PeerError: If an owner has been lost, and the next worker as well.
    """
    offers = backup.offers(own) if backup is not None else {}
    local = [[owner, [part.nbytes for part in parts]] for owner, parts in offers.items()]
    all_ranks = communicator.all_gather_object([backup.owners if backup is not None else 0, local])
    best: dict[int, tuple] = {}  # for each owner: the rank that provides its parts, and their lengths
    for position in (0, 1):  # those of owners first
        for rank, (_, offered) in enumerate(all_ranks):
            if offered:
                best.setdefault(offered[position][0], (rank, offered[position][1]))
    owners = max(count for count, _ in all_ranks)
    if len(best) < owners:
        raise PeerError(
            "a sharded update goes on without a worker if the next one, which holds a copy of its state, is there. "
            "Received: the loss of both. Start it with `--restarts`, and `Distribute(checkpoint=...)`"
        )
    found = []
    for owner in range(owners):
        rank, lengths = best[owner]
        is_here = communicator.rank == rank
        parts = (
            [_bytes(part) for part in offers[owner]] if is_here else [np.empty(length, np.uint8) for length in lengths]
        )
        for part in parts:
            if part.size:
                communicator.broadcast(part, rank)
        found.append(parts)
    return found


def _bytes(array: np.ndarray) -> np.ndarray:
    return as_bytes(np.ascontiguousarray(array).reshape(-1))
