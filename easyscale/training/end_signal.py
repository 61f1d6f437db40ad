"""SIGTERM, by which a cluster says that a job will be ended."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, TypeAlias

__all__ = ["EndSignal", "held_back"]

_Handler: TypeAlias = Callable[[int, FrameType | None], Any] | int | None


class _HeldBack:
    """Takes a SIGTERM in the place of the handler `before`."""

    def __init__(self) -> None:
        self.before: _Handler = signal.getsignal(signal.SIGTERM)
        self.has_come = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.has_come = True


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """A context at whose end a SIGTERM arrives that was sent inside: at an `EndSignal` that listens by then, if any."""
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
    """Calls a function when the process gets SIGTERM, and then what was called before.

    Args:
        act: Function without arguments.
    """

    def __init__(self, act: Callable[[], None]):
        self._act = act
        self._before: _Handler = None

    def listen(self) -> None:
        """Begin. Only a process's main thread can."""
        if threading.current_thread() is threading.main_thread():
            before: Any = signal.signal(signal.SIGTERM, self._on_signal)
            self._before = before.before if isinstance(before, _HeldBack) else before

    def stop(self) -> None:
        """Leave the signal to whoever had it before."""
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)
            self._before = None

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._act()
        if callable(self._before):
            self._before(number, frame)
