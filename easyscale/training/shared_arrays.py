"""Arrays of one rank, given to all."""

import numpy as np

from easyscale.communicator import Communicator

__all__ = ["share_arrays"]


def share_arrays(communicator: Communicator, arrays: dict[str, np.ndarray], giver: int) -> dict[str, np.ndarray]:
    """Return the arrays of the rank `giver` on all ranks. They must all call this."""
    own = {name: [_kind_of(array), list(array.shape)] for name, array in arrays.items()}
    kinds = communicator.all_gather_object(own)[giver]
    found = {}
    for name, (kind, shape) in kinds.items():
        found[name] = np.array(arrays[name]) if communicator.rank == giver else np.empty(shape, np.dtype(kind))
        if found[name].size:
            communicator.broadcast(found[name].reshape(-1), giver)
    return found


def _kind_of(array: np.ndarray) -> str:
    """What `np.dtype` makes the array's type of, also if that is text, or none of NumPy's own."""
    return array.dtype.name if array.dtype.kind == "V" else array.dtype.str
