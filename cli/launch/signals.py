"""Signal handling of the launcher while a job runs: signals call functions, and wake it up."""

import contextlib
import signal
import socket
from collections.abc import Callable, Iterator

__all__ = ["caught"]


@contextlib.contextmanager
def caught(on_signal: Callable[[int], None], on_resize: Callable[[], None]) -> Iterator[socket.socket]:
    """Return a context in which signals call these functions, and make a socket readable.

    Functions are called at once, even while this process blocks on a write, so that a second Ctrl-C always works.

    Args:
        on_signal: Callable. Takes the number of a signal that asks for an end: SIGINT, SIGTERM or, without `nohup`,
            SIGHUP.
        on_resize: Callable. Called when the terminal is resized.
    """
    inner, outer = socket.socketpair()
    outer.setblocking(False)
    before = {}
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    for number in numbers:
        before[number] = signal.signal(number, lambda number, frame: on_signal(number))
    before[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, lambda number, frame: on_resize())
    before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda number, frame: None)
    wakeup = signal.set_wakeup_fd(outer.fileno(), warn_on_full_buffer=False)
    try:
        yield inner
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in before.items():
            signal.signal(number, handler)
        inner.close()
        outer.close()
