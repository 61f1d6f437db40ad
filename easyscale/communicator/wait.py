"""What a rank waits for, and how it does."""

import threading
from collections.abc import Callable
from typing import NamedTuple

__all__ = ["Wait", "is_patient", "wait_patiently"]

_thread = threading.local()


def wait_patiently() -> None:
    """Have this thread, from now on, leave its core to others as soon as it waits: they compute meanwhile."""
    _thread.is_patient = True


def is_patient() -> bool:
    """Return whether this thread waits patiently."""
    return getattr(_thread, "is_patient", False)


class Wait(NamedTuple):
    """What a rank waits for, and who is told of it. For `Communicator.poll`.

    Attributes:
        action: String. What this rank does meanwhile, as "waits for rank 1".
        missing: Callable. Returns the ranks without which it cannot come to an end. Defaults to `None`: all others.
        stalls: Bool. Whether it is a stall if that takes long. Defaults to `True`.
        notices: Bool. Whether what is polled raises `LostError` itself if it waits for a rank that has failed. Defaults
            to `False`: whichever rank has failed, the waiting ends by this error.

    Example:

    >>> flag = np.ones(1)
    >>> easyscale.communicator.get("local").poll(lambda: flag[0] > 0, Wait("waits for rank 1", lambda: [1]))
    """

    action: str
    missing: Callable[[], list[int]] | None = None
    stalls: bool = True
    notices: bool = False
