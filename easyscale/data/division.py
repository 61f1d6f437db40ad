"""Among whom data are divided, and of what a part was taken, so that it can be divided anew among other workers."""

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
    """Return how many neighbours of these ranks have the same data: the stages of a pipeline, else 1."""
    return mesh.ranks_of_worker() if communicator is communicators.get() else 1


def position_of(communicator: Communicator) -> Callable[[], tuple[int, int]]:
    """Return a function that returns a worker's number and how many there are.

    If data are divided anew when workers fail it says what holds at the moment, else what held at first.
    """

    def position() -> tuple[int, int]:
        # A server trains on no data; its model is built by those of a worker.
        ranks = ranks_of_worker(communicator)
        return communicator.rank % communicator.workers // ranks, communicator.workers // ranks

    at_first = position()
    return position if communicator.membership.keeps_global_batch else lambda: at_first


class Whole(NamedTuple):
    """What one worker's part was taken from.

    Attributes:
        data: Arrays, in the structure of the part.
        workers: List of the workers among which it was divided, by the numbers that they had at the start.
    """

    data: Any
    workers: list[int]


class Part(NamedTuple):
    """Which rows of an array a part has: `first`, `first + size`, ... of `total`."""

    first: int
    size: int
    total: int


_parts: dict[int, Part | None] = {}  # by the identity of what `shard` has returned
_wholes: dict[int, Whole] = {}  # by the identity of an array that is a part
_failures: list[Exception] = []  # raised where batches are made, which TensorFlow shows as one of its own
_small: weakref.WeakKeyDictionary[Any, "SmallBatches"] = weakref.WeakKeyDictionary()
_marked: weakref.WeakSet = weakref.WeakSet()
_finite: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def note_part(local: Any, part: Part | None = None) -> Any:
    """Return something after it was noted that it is this worker's part: of arrays, if it is known, which."""
    for leaf in arrays.leaves(local):
        try:
            weakref.finalize(leaf, _parts.pop, id(leaf), None)
        except TypeError:  # a list
            continue
        _parts[id(leaf)] = part
    return local


def part_of(local: Any) -> Part | None:
    """Return which part all arrays of a nested structure are; `None` unless that is known of all, and the same."""
    found = [_parts.get(id(leaf)) for leaf in arrays.leaves(local)]
    return found[0] if found and all(part == found[0] for part in found) else None


def is_part(data: Any) -> bool:
    """Return whether something was noted as a worker's part, is a view of one, or a dataset made of one."""
    return any(_is_part(leaf) or any(map(is_part, inputs_of(leaf))) for leaf in arrays.leaves(data))


def _is_part(leaf: Any) -> bool:
    while leaf is not None and id(leaf) not in _parts:
        leaf = getattr(leaf, "base", None) if isinstance(leaf, np.ndarray) else None  # of which it is a view
    return leaf is not None


def remember(part: Any, whole: Any, workers: list[int]) -> None:
    """Remember of which arrays those of a nested structure are parts, as long as these exist."""
    for local, all_ranks in zip(arrays.leaves(part), arrays.leaves(whole), strict=True):
        try:
            weakref.finalize(local, _wholes.pop, id(local), None)
        except TypeError:  # a list
            continue
        _wholes[id(local)] = Whole(all_ranks, list(workers))


def whole_of(*parts: Any) -> Whole | None:
    """Return what these parts, or nested structures of them, were taken from: `None` unless that is known of all.

    What was computed from a part is no part.
    """
    leaves = arrays.leaves(parts)
    found = [_wholes[id(leaf)] for leaf in leaves if id(leaf) in _wholes]
    if not found or len(found) < len(leaves) or any(whole.workers != found[0].workers for whole in found):
        return None
    return Whole(arrays.transform(parts, lambda leaf: _wholes[id(leaf)].data), found[0].workers)


def count(whole: Any) -> int:
    """Return how many rows the arrays of a nested structure have."""
    first = arrays.leaves(whole)[0]
    return first.shape[0] if hasattr(first, "shape") else len(first)


def rows(whole: Any, indices: np.ndarray) -> Any:
    """Return these rows of every array of a nested structure."""

    def taken(array: Any) -> Any:
        if hasattr(array, "iloc"):
            return array.iloc[indices]
        return (array if hasattr(array, "tocsr") else np.asarray(array))[indices]

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
        """Note that there are batches of so many samples; return this number."""
        self._samples = int(samples)
        return np.int64(samples)

    def check(self) -> None:
        """Raise `ValueError` if there are such batches: a step on one of them leaves some workers without a sample."""
        if self._samples is not None:
            arrays.check_samples(self._samples, self._size, " of each batch")


def note_small_batches(dataset: Any, small: SmallBatches) -> Any:
    """Return a dataset after it was noted who knows of its small batches."""
    _small[dataset] = small
    return dataset


def small_batches_of(dataset: Any) -> list[SmallBatches]:
    """Return who knows of small batches of a dataset, or of those that it is made of; nobody for other data."""
    sources = inputs_of(dataset)
    own = [_small[dataset]] if sources and dataset in _small else []
    return own + [small for source in sources for small in small_batches_of(source)]


def refuse_batches(samples: int, size: int) -> None:
    """Raise `ValueError` unless a batch, one of several, has at least `size` samples.

    For where batches are made, which may be on a thread of TensorFlow's: see `explained`.
    """
    try:
        arrays.check_samples(samples, size, " of each batch")
    except ValueError as error:
        _failures.append(error)
        raise


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Inside, what `refuse_batches` raises is raised as it was, without TensorFlow's wrapping."""
    try:
        yield
    except Exception:
        if _failures:
            raise _failures.pop() from None
        raise
    finally:
        _failures.clear()


def mark(dataset: Any) -> Any:
    """Return a dataset after it was noted that it divides its batches among the workers of the moment."""
    _marked.add(dataset)
    return dataset


def divides_itself(dataset: Any) -> bool:
    """Return whether a dataset was marked so, or is made of one that was."""
    return _is_made_of(dataset, _marked)


def mark_as_finite(dataset: Any, batches: int) -> None:
    """Note that what a dataset was taken from has so many batches, though nobody knows how many it has itself."""
    _finite[dataset] = batches


def is_finite(dataset: Any) -> bool:
    """Return whether a dataset was marked so, or is made of one that was."""
    return _is_made_of(dataset, _finite)


def batches_of_whole(dataset: Any) -> int | None:
    """Return how many batches that has of which all workers have parts, as `dataset`; `None` if that is not known."""
    while keeps_count(dataset) and dataset not in _finite:
        (dataset,) = inputs_of(dataset)
    return _finite.get(dataset) if inputs_of(dataset) else None


def _is_made_of(dataset: Any, some: weakref.WeakSet | weakref.WeakKeyDictionary) -> bool:
    try:
        return dataset in some or any(_is_made_of(source, some) for source in inputs_of(dataset))
    except TypeError:  # arrays and lists have no hash
        return False
