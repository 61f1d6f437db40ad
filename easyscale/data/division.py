"""Bookkeeping of divided data: the workers, and the full data of each part, so that it can be divided again."""

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from easyscale import communicator as communicators
from easyscale import mesh
from easyscale.communicator import Communicator
from easyscale.data import arrays
from easyscale.keras_internals import inputs_of, keeps_count

__all__ = [
    "Whole",
    "SmallBatches",
    "batches_of_whole",
    "Part",
    "count",
    "divides_itself",
    "explained",
    "is_finite",
    "is_part",
    "mark",
    "mark_as_finite",
    "note_part",
    "note_small_batches",
    "part_of",
    "position_of",
    "ranks_of_worker",
    "remember",
    "refuse_batches",
    "rows",
    "small_batches_of",
    "whole_of",
]


def ranks_of_worker(communicator: Communicator) -> int:
    """Return the number of neighbouring ranks that have the same data: those that form one worker; usually 1."""
    return mesh.ranks_of_worker() if communicator is communicators.get() else 1


def position_of(communicator: Communicator) -> Callable[[], tuple[int, int]]:
    """Return a function that returns this worker's number and the number of workers.

    If data is divided again when workers fail, it returns the current values, else those at the time of this call.
    """

    def position() -> tuple[int, int]:
        # A server does not train; it uses a worker's data to build its model.
        ranks = ranks_of_worker(communicator)
        return communicator.rank % communicator.workers // ranks, communicator.workers // ranks

    at_first = position()
    return position if communicator.membership.keeps_global_batch else lambda: at_first


class Whole(NamedTuple):
    """The full data that one worker's part was taken from.

    Attributes:
        data: Arrays, in the structure of the part.
        workers: List of the workers among which it was divided, by their initial ranks.
    """

    data: Any
    workers: list[int]


class Part(NamedTuple):
    """The rows of an array that a part has: `first`, `first + size`, ... of `total`."""

    first: int
    size: int
    total: int


_parts: dict[int, Part | None] = {}  # by `id` of a part that `shard` has returned
_wholes: dict[int, Whole] = {}  # by `id` of an array that is a part
_failures: list[Exception] = []  # raised in input pipelines, where TensorFlow wraps them in its own exceptions
_small: weakref.WeakKeyDictionary[Any, "SmallBatches"] = weakref.WeakKeyDictionary()
_marked: weakref.WeakSet = weakref.WeakSet()
_finite: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def note_part(local: Any, part: Part | None = None) -> Any:
    """Record that `local` is this worker's part, with its rows if they are known; return it."""
    for leaf in arrays.leaves(local):
        try:
            weakref.finalize(leaf, _parts.pop, id(leaf), None)
        except TypeError:  # a list
            continue
        _parts[id(leaf)] = part
    return local


def part_of(local: Any) -> Part | None:
    """Return the `Part` that all arrays of a nested structure are; `None` unless it is known and the same for all."""
    found = [_parts.get(id(leaf)) for leaf in arrays.leaves(local)]
    return found[0] if found and all(part == found[0] for part in found) else None


def is_part(data: Any) -> bool:
    """Return whether data is recorded as a worker's part, is a view of one, or is a dataset made of one."""
    return any(_is_part(leaf) or any(map(is_part, inputs_of(leaf))) for leaf in arrays.leaves(data))


def _is_part(leaf: Any) -> bool:
    while leaf is not None and id(leaf) not in _parts:
        leaf = getattr(leaf, "base", None) if isinstance(leaf, np.ndarray) else None  # the array it is a view of
    return leaf is not None


def remember(part: Any, whole: Any, workers: list[int]) -> None:
    """Keep the full arrays of the parts in a nested structure, for as long as the parts exist."""
    for local, all_ranks in zip(arrays.leaves(part), arrays.leaves(whole), strict=True):
        try:
            weakref.finalize(local, _wholes.pop, id(local), None)
        except TypeError:  # a list
            continue
        _wholes[id(local)] = Whole(all_ranks, list(workers))


def whole_of(*parts: Any) -> Whole | None:
    """Return the full data of these parts, or nested structures of them; `None` unless it is known for all.

    An array computed from a part does not count as one.
    """
    leaves = arrays.leaves(parts)
    found = [_wholes[id(leaf)] for leaf in leaves if id(leaf) in _wholes]
    if not found or len(found) < len(leaves) or any(whole.workers != found[0].workers for whole in found):
        return None
    return Whole(arrays.transform(parts, lambda leaf: _wholes[id(leaf)].data), found[0].workers)


def count(whole: Any) -> int:
    """Return the number of rows of the arrays in a nested structure."""
    first = arrays.leaves(whole)[0]
    return first.shape[0] if hasattr(first, "shape") else len(first)


def rows(whole: Any, indices: np.ndarray) -> Any:
    """Return these rows of every array of a nested structure."""

    def taken(array: Any) -> Any:
        if hasattr(array, "iloc"):
            return array.iloc[indices]
        try:
            return (array if hasattr(array, "tocsr") else np.asarray(array))[indices]
        except TypeError:  # a tensor of a type that NumPy does not have
            return array[indices]

    return arrays.transform(whole, taken)


class SmallBatches:
    """Records batches of a dataset that have fewer samples than there are workers, except the last of an epoch.

    Args:
        size: Int. The number of workers.
    """

    def __init__(self, size: int):
        self._size = size
        self._samples: int | None = None

    def note(self, samples: int) -> Any:
        """Record that there is a batch of this many samples; return the number."""
        self._samples = int(samples)
        return np.int64(samples)

    def check(self) -> None:
        """Raise `ValueError` if a small batch was recorded: it leaves some workers without a sample in a step."""
        if self._samples is not None:
            arrays.check_samples(self._samples, self._size, " of each batch")


def note_small_batches(dataset: Any, small: SmallBatches) -> Any:
    """Record the `SmallBatches` of a dataset; return the dataset."""
    _small[dataset] = small
    return dataset


def small_batches_of(dataset: Any) -> list[SmallBatches]:
    """Return the `SmallBatches` of a dataset and of the datasets it is made of; an empty list for other data."""
    sources = inputs_of(dataset)
    own = [_small[dataset]] if sources and dataset in _small else []
    return own + [small for source in sources for small in small_batches_of(source)]


def refuse_batches(samples: int, size: int) -> None:
    """Raise `ValueError` unless a batch, one of several, has at least `size` samples.

    For input pipelines, which may run on a TensorFlow thread: see `explained`.
    """
    try:
        arrays.check_samples(samples, size, " of each batch")
    except ValueError as error:
        _failures.append(error)
        raise


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Return a context in which errors of `refuse_batches` are raised without TensorFlow's wrapping."""
    try:
        yield
    except Exception:
        if _failures:
            raise _failures.pop() from None
        raise
    finally:
        _failures.clear()


def mark(dataset: Any) -> Any:
    """Record that a dataset divides its batches among the current workers; return it."""
    _marked.add(dataset)
    return dataset


def divides_itself(dataset: Any) -> bool:
    """Return whether `mark` was called on a dataset, or on one that it is made of."""
    return _is_made_of(dataset, _marked)


def mark_as_finite(dataset: Any, batches: int) -> None:
    """Record how many batches a dataset's source has; the dataset's own number is unknown."""
    _finite[dataset] = batches


def is_finite(dataset: Any) -> bool:
    """Return whether `mark_as_finite` was called on a dataset, or on one that it is made of."""
    return _is_made_of(dataset, _finite)


def batches_of_whole(dataset: Any) -> int | None:
    """Return the number of batches before the division that made `dataset` a part; `None` if it is not known."""
    while keeps_count(dataset) and dataset not in _finite:
        (dataset,) = inputs_of(dataset)
    return _finite.get(dataset) if inputs_of(dataset) else None


def _is_made_of(dataset: Any, some: weakref.WeakSet | weakref.WeakKeyDictionary) -> bool:
    try:
        return dataset in some or any(_is_made_of(source, some) for source in inputs_of(dataset))
    except TypeError:  # arrays and lists are not hashable
        return False
