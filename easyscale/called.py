"""Record of the package's functions that the script has called, used to detect forgotten ones."""

import contextlib
import warnings
from collections.abc import Iterator

from easyscale.errors import EasyScaleWarning

__all__ = [
    "LocalBatch",
    "global_batch_of",
    "names",
    "note",
    "note_local_batch",
    "unnoted",
    "warn_of_batches_divided_twice",
]

names: set[str] = set()
_local_batches: dict[int, int] = {}  # result of `local_batch` -> its last argument
_warned: set[int] = set()


class LocalBatch(int):
    """The integer that `local_batch` returns, with the global batch that it is a part of.

    Attributes:
        global_batch: Int. The samples in a batch of all workers.
    """

    global_batch: int


def note(name: str) -> None:
    """Record that the script has called a function of this name."""
    names.add(name)


@contextlib.contextmanager
def unnoted() -> Iterator[None]:
    """Return a context in which calls are not recorded, because the script does not make them."""
    before = set(names)
    try:
        yield
    finally:
        names.intersection_update(before)


def note_local_batch(global_batch: int, local_batch: int) -> LocalBatch:
    """Record a call of `local_batch`; return its result."""
    names.add("local_batch")
    _local_batches[local_batch] = global_batch
    local = LocalBatch(local_batch)
    local.global_batch = global_batch
    return local


def global_batch_of(local_batch: int) -> int | None:
    """Return the last global batch for which `local_batch` has returned this; `None` if it never has."""
    return _local_batches.get(local_batch)


def warn_of_batches_divided_twice(local: LocalBatch) -> None:
    """Warn that `shard` is about to divide batches whose size is already a result of `local_batch`.

    Args:
        local: The size of the batches.
    """
    if local not in _warned and local != local.global_batch:
        _warned.add(local)
        warnings.warn(
            f"batches must be divided once. Received: batches of {local}, as `local_batch({local.global_batch})` has "
            f"returned, for `shard` to divide again. Give it batches of {local.global_batch}, or single samples",
            EasyScaleWarning,
            stacklevel=3,
        )
