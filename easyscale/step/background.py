"""A background thread that calls functions in order while the graph computes. No TensorFlow."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, ClassVar, TypeVar

import numpy as np

from easyscale.communicator.wait import wait_patiently

__all__ = ["Background"]

T = TypeVar("T")


class Background:
    """Calls functions in the order of submission, in a background thread.

    With a pool of `concurrent.futures`, a failed process would wait at exit for messages that other ranks never send.

    Attributes:
        NAME: String. The name of the thread.
    """

    NAME: ClassVar[str] = "easyscale-exchange"

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, function: Callable[..., T], *args: Any) -> Future[T]:
        """Queue `function(*args)`; return its future."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self.NAME, daemon=True)
            self._thread.start()
        future: Future[T] = Future()
        self._calls.put((future, function, args))
        return future

    def _work(self) -> None:
        wait_patiently()
        while True:
            future, function, args = self._calls.get()
            try:
                with np.errstate(over="ignore", invalid="ignore"):  # as in the training thread
                    future.set_result(function(*args))
            except BaseException as error:
                future.set_exception(error)
            del future, function, args  # keeps nothing alive while it waits
