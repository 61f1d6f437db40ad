"""SIGTERM, by which a cluster announces that a job will be ended."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, TypeAlias

__all__ = ["EndSignal", "held_back"]

_Handler: TypeAlias = Callable[[int, FrameType | None], Any] | int | None


class _HeldBack:
    """A handler that records a SIGTERM in place of the handler `before`."""

    def __init__(self) -> None:
        self.before: _Handler = signal.getsignal(signal.SIGTERM)
        self.has_come = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.has_come = True


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Return a context that defers a SIGTERM to its end: to an `EndSignal` that listens by then, if any."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    holder = _HeldBack()
    signal.signal(signal.SIGTERM, holder)
    try:
        yield
    finally:
        before, has_come = holder.before, holder.has_come
        if signal.getsignal(signal.SIGTERM) is holder:
            signal.signal(signal.SIGTERM, before)
        if has_come:
            signal.raise_signal(signal.SIGTERM)


class EndSignal:
    """Calls a function when the process receives SIGTERM, and then the previous handler.

    Args:
        act: Function without arguments.
    """

    def __init__(self, act: Callable[[], None]):
        self._act = act
        self._before: _Handler = None

    def listen(self) -> None:
        """Start to listen. Has no effect outside of the main thread."""
        if threading.current_thread() is threading.main_thread():
            before: Any = signal.signal(signal.SIGTERM, self._on_signal)
            self._before = before.before if isinstance(before, _HeldBack) else before

    def stop(self) -> None:
        """Restore the previous handler."""
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)
            self._before = None

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._act()
        if callable(self._before):
            self._before(number, frame)
