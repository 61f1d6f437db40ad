"""Descriptions of waits, and the waiting mode of a thread."""

import threading
from collections.abc import Callable
from typing import NamedTuple

__all__ = ["Wait", "is_patient", "wait_patiently"]

_thread = threading.local()


def wait_patiently() -> None:
    """Make this thread give up its core as soon as it waits, so that other threads can compute."""
    _thread.is_patient = True


def is_patient() -> bool:
    """Return whether this thread waits patiently."""
    return getattr(_thread, "is_patient", False)


class Wait(NamedTuple):
    """Description of a wait, for `Communicator.poll`.

    Attributes:
        action: String. What this rank is doing, such as "waits for rank 1".
        missing: Callable. Returns the ranks that it still waits for. Defaults to `None`: all others.
        stalls: Bool. Whether a long wait counts as a stall. Defaults to `True`.
        notices: Bool. Whether polling itself raises `LostError` if it waits for a failed rank. Defaults to `False`:
            the failure of any rank ends the wait with this error.

    Example:

    >>> flag = np.ones(1)
    >>> easyscale.communicator.get("local").poll(lambda: flag[0] > 0, Wait("waits for rank 1", lambda: [1]))
    """

    action: str
    missing: Callable[[], list[int]] | None = None
    stalls: bool = True
    notices: bool = False
