"""Arrays of one rank, given to all."""

import numpy as np

from easyscale.communicator import Communicator

__all__ = ["broadcast_arrays"]


def broadcast_arrays(communicator: Communicator, arrays: dict[str, np.ndarray], root: int) -> dict[str, np.ndarray]:
    """Return the arrays of the rank `root` on all ranks. They must all call this."""
    own = {name: [_dtype_name(array), list(array.shape)] for name, array in arrays.items()}
    specs = communicator.all_gather_object(own)[root]
    found = {}
    for name, (dtype, shape) in specs.items():
        found[name] = np.array(arrays[name]) if communicator.rank == root else np.empty(shape, np.dtype(dtype))
        if found[name].size:
            communicator.broadcast(found[name].reshape(-1), root)
    return found


def _dtype_name(array: np.ndarray) -> str:
    """What `np.dtype` makes the array's type of, also if that is text, or none of NumPy's own."""
    return array.dtype.name if array.dtype.kind == "V" else array.dtype.str
