"""Whose step is being traced: what Keras's losses and layers need to know, and cannot be given as an argument."""

import contextlib
import threading
from collections.abc import Iterator

__all__ = ["step_of", "workers_of_step"]

_inside = threading.local()  # each thread traces a step of its own


@contextlib.contextmanager
def step_of(workers: object) -> Iterator[None]:
    """Inside, what is called belongs to a step of `workers`, the `BetweenGraph` or `InGraph` of an optimizer."""
    before, _inside.workers = workers_of_step(), workers
    try:
        yield
    finally:
        _inside.workers = before


def workers_of_step() -> object | None:
    """Return the workers whose step this is, or `None` outside of one."""
    return getattr(_inside, "workers", None)
