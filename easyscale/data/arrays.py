"""A worker's part of arrays, and of nested structures of them."""

import numbers
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

__all__ = ["check", "check_samples", "leaves", "part", "transform"]


def _is_structure(data: Any) -> bool:
    if isinstance(data, dict):
        return True
    return isinstance(data, (list, tuple)) and not (data and isinstance(data[0], (numbers.Number, str, bytes)))


def leaves(data: Any) -> list:
    """Return the arrays in a nested structure of dicts, lists and tuples. `None` is skipped."""
    if data is None:
        return []
    if not _is_structure(data):
        return [data]
    return [leaf for value in (data.values() if isinstance(data, dict) else data) for leaf in leaves(value)]


def _length(array: Any) -> int:
    shape = getattr(array, "shape", None)
    if shape is not None and len(shape):
        if not hasattr(array, "__getitem__"):
            raise ValueError(
                f"arrays must let their rows be taken. Received: {type(array).__name__}, which does not. Pass "
                "`tf.data.Dataset.from_tensor_slices(x)`, or a dense array"
            )
        return int(shape[0])
    has_rows = hasattr(array, "__len__") and hasattr(array, "__getitem__") and not isinstance(array, (str, bytes))
    if shape is None and has_rows:
        return len(array)
    raise ValueError(
        "`shard` must be given arrays, a `tf.data.Dataset` or a `keras.utils.PyDataset`. "
        f"Received: {type(array).__name__}. A generator must yield this worker's part by itself"
    )


def check(data: Sequence[Any], size: int) -> None:
    """Raise `ValueError` unless all arrays in `data` have the same length, at least `size`."""
    for argument in data:
        _check_rows(argument)
    lengths = [_length(array) for argument in data for array in leaves(argument)]
    if len({*lengths}) > 1:
        raise ValueError(
            f"arrays must have the same length. Received: lengths {lengths}. Pass each sample's rows of all"
        )
    if lengths:
        check_samples(min(lengths), size)


def _check_rows(data: Any) -> None:
    """Raise `ValueError` for a list of lists: its rows could be the inner lists, or the elements of each of them."""
    if not _is_structure(data):
        return
    inner = list(data.values() if isinstance(data, dict) else data)
    are_lists = isinstance(data, list) and all(isinstance(part, (list, tuple)) for part in inner)
    if are_lists and any(part and not _is_structure(part) for part in inner):
        raise ValueError(
            "rows must be those of an array. Received: a list of lists. Pass `np.array(x)`, or "
            "`tf.ragged.constant(x)` where rows differ in length"
        )
    for part in inner:
        _check_rows(part)


def check_samples(samples: int, size: int, where: str = "") -> None:
    """Raise `ValueError` unless there are at least `size` samples."""
    if samples < size:
        raise ValueError(
            f"every worker must get at least one sample{where}. Received: {samples} sample{'s' * (samples != 1)} for "
            f"{size} workers. Start fewer workers{', or make larger batches' if 'batch' in where else ''}"
        )


def part(data: Any, rank: int, size: int) -> Any:
    """Return rows `rank`, `rank + size`, `rank + 2 * size`, ... of every array of a nested structure."""

    def local(array: Any) -> Any:
        rows = array.iloc if hasattr(array, "iloc") else array
        taken = rows[rank::size]
        return np.ascontiguousarray(taken) if isinstance(taken, np.ndarray) else taken

    return transform(data, local)


def transform(data: Any, function: Callable[[Any], Any]) -> Any:
    """Return a nested structure with each array replaced by `function(array)`. `None` stays."""
    if data is None:
        return None
    if isinstance(data, dict):
        return type(data)({key: transform(value, function) for key, value in data.items()})
    if _is_structure(data):
        parts = [transform(value, function) for value in data]
        return type(data)(*parts) if hasattr(data, "_fields") else type(data)(parts)
    return function(data)
