"""Broadcast of arrays from one rank to all."""

from collections.abc import Mapping

import numpy as np

from easyscale.communicator import Communicator

__all__ = ["broadcast_arrays", "dtype_name"]


def broadcast_arrays(communicator: Communicator, arrays: Mapping[str, np.ndarray], root: int) -> dict[str, np.ndarray]:
    """Return the arrays of rank `root` on all ranks. All ranks must call this."""
    own = {name: [dtype_name(array.dtype), list(array.shape)] for name, array in arrays.items()}
    specs = communicator.all_gather_object(own)[root]
    found = {}
    for name, (dtype, shape) in specs.items():
        found[name] = np.array(arrays[name]) if communicator.rank == root else np.empty(shape, np.dtype(dtype))
        if found[name].size:
            communicator.broadcast(found[name].reshape(-1), root)
    return found


def dtype_name(dtype: np.dtype) -> str:
    """Return a name from which `np.dtype` makes this type, also for strings and for types that are not NumPy's own."""
    return dtype.name if dtype.kind == "V" else dtype.str
