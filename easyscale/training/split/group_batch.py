"""The batch of a group of ranks that form one worker: that of its first rank."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from easyscale.communicator import Communicator
from easyscale.step.shared import Shared

__all__ = ["GroupBatch", "of_first"]


class GroupBatch:
    """Gives all ranks of a group the batch of the first, inside a step: each may have shuffled its data differently.

    The batch is broadcast over a binomial tree: the first rank sends `ceil(log2 G)` times its bytes. All ranks exchange
    8 bytes for each axis of its arrays.

    Args:
        group: The `Communicator` of the group.
        shared: The `Shared` of the workers.
    """

    def __init__(self, group: Communicator, shared: Shared):
        self._group, self._shared = group, shared

    def __call__(self, data: Any) -> Any:
        """Return the batch, in the graph. All ranks of the group must call this.

        Args:
            data: Nested structure of tensors and `None`.
        """
        leaves = keras.tree.flatten(data)
        tensors = [leaf for leaf in leaves if leaf is not None]
        specs = [(tuple(tensor.shape), _dtype_of(tensor)) for tensor in tensors]
        common = iter(self._shared.call(self._give, tensors, specs))
        return keras.tree.pack_sequence_as(data, [None if leaf is None else next(common) for leaf in leaves])

    def _give(self, *arrays: np.ndarray) -> list[np.ndarray]:
        return of_first(self._group, arrays)


def of_first(group: Communicator, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the arrays of the first rank. All ranks of the group must call this.

    Args:
        group: The `Communicator` of the group.
        arrays: List of numeric arrays, of the same shapes on all ranks.

    Raises:
        ValueError: If arrays are not numeric, or shapes differ.
    """
    for array in arrays:
        if array.dtype.kind not in "biufc" and array.dtype.name != "bfloat16":
            raise _no_numbers(type(array).__name__, array.dtype.name)
    shapes = group.all_gather_rows(np.array([length for array in arrays for length in array.shape], int))
    if (shapes != shapes[0]).any():
        raise ValueError(
            "ranks that are one worker must be given batches of the same shapes. Received: "
            f"{[row.tolist() for row in shapes]} on ranks 0 to {len(shapes) - 1} of a group. Divide data by "
            "`easyscale.shard`, or by `easyscale.rank()` and `easyscale.size()`, which count groups"
        )
    own = group.rank == 0
    common = [np.ascontiguousarray(array) if own else np.empty_like(array, order="C") for array in arrays]
    for array in common:
        if array.size:
            group.broadcast(array.reshape(-1))
    return common


def _no_numbers(kind: str, dtype: str | None) -> ValueError:
    return ValueError(
        "ranks that are one worker give each other batches of numbers. Received: "
        f"{kind} of {dtype}. Make it dense numbers before `fit()`, or leave `group` out"
    )


def _dtype_of(tensor: Any) -> np.dtype:
    dtype = getattr(tensor, "dtype", None)
    name = None if dtype is None or not hasattr(tensor, "shape") else keras.backend.standardize_dtype(dtype)
    if name in (None, "string") or type(tensor).__name__ in ("RaggedTensor", "SparseTensor"):
        raise _no_numbers(type(tensor).__name__, name)
    return np.dtype(name)
