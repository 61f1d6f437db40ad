"""Which of the package's functions the script has called: from this it shows what has been forgotten."""

import contextlib
import warnings
from collections.abc import Iterator

from easyscale.errors import EasyScaleWarning

__all__ = ["global_batch_of", "names", "note", "note_local_batch", "unnoted", "warn_if_divided_twice"]

names: set[str] = set()
_local_batches: dict[int, int] = {}  # what `local_batch` has returned -> what it was given last
_warned: set[int] = set()


def note(name: str) -> None:
    """Take in that the script has called a function of this name."""
    names.add(name)


@contextlib.contextmanager
def unnoted() -> Iterator[None]:
    """Return a context in which it is not the script that calls functions."""
    before = set(names)
    try:
        yield
    finally:
        names.intersection_update(before)


def note_local_batch(global_batch: int, local_batch: int) -> int:
    """Return what `local_batch` returns, after it was noted."""
    names.add("local_batch")
    _local_batches[local_batch] = global_batch
    return local_batch


def global_batch_of(local_batch: int) -> int | None:
    """Return the global batch for which `local_batch` has returned this last; `None` if it never has."""
    return _local_batches.get(local_batch)


def warn_if_divided_twice(batch: int | None) -> None:
    """Warn where `shard` is about to divide batches that are as large as `local_batch` has said.

    Args:
        batch: Int. The number of samples in a batch; `None` if it is not known.
    """
    if batch is None or batch in _warned:
        return
    given = global_batch_of(batch)
    if given not in (None, batch):
        _warned.add(batch)
        warnings.warn(
            f"batches must be divided once. Received: batches of {batch}, as `local_batch({given})` has returned, for "
            f"`shard` to divide again. Give it batches of {given}, or single samples",
            EasyScaleWarning,
            stacklevel=3,
        )
