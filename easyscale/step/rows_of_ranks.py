"""Collects one array from each rank on the chief. NumPy only."""

import numpy as np

from easyscale.checkpoint.snapshot_memory import SnapshotMemory
from easyscale.communicator import Communicator
from easyscale.communicator.communicator import as_bytes

__all__ = ["collect_rows"]


def collect_rows(communicator: Communicator, own: np.ndarray, memory: SnapshotMemory) -> np.ndarray | None:
    """Return, on the chief, the arrays of all ranks, stacked; elsewhere `None`. All ranks must call this.

    Args:
        communicator: The `Communicator`.
        own: Array. This rank's array, of the same shape and dtype on all ranks.
        memory: `SnapshotMemory`. Allocates the result.
    """
    if not communicator.is_chief:
        if own.size:
            communicator.isend(as_bytes(np.ascontiguousarray(own)), 0).wait()
        return None
    rows = memory.empty((communicator.size, *own.shape), own.dtype)
    others = range(1, communicator.size if own.size else 1)
    requests = [communicator.ireceive(as_bytes(rows[rank : rank + 1]), rank) for rank in others]
    rows[0] = own
    for request in requests:
        request.wait()
    return rows
