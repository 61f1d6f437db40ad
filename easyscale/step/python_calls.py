"""Calls of Python from a graph, and the exceptions that they raise."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from easyscale.backend.base import Backend

__all__ = ["PythonCalls"]


class PythonCalls:
    """Calls Python from a graph, one call at a time, and keeps the exception that a call has raised.

    The backend then raises another error, with the original one as text. `explained` raises the original one.

    Args:
        backend: The `Backend`.

    Attributes:
        failure: The exception that a call has raised last, or `None`.
        rehearses: Bool. Whether it is in `rehearsing()`.
    """

    def __init__(self, backend: Backend):
        self._host_calls, self._end_of_data = backend.host_calls(), backend.end_of_data
        self.failure: Exception | None = None
        self.rehearses = False

    @contextlib.contextmanager
    def rehearsing(self) -> Iterator[None]:
        """Make calls return zeros, without calling anything, so that a step can run without the other workers."""
        self.rehearses = True
        try:
            yield
        finally:
            self.rehearses = False

    def __call__(
        self,
        function: Callable,
        inputs: Sequence,
        results: Sequence[tuple[Sequence[int | None], np.dtype]],
        stay: int = 0,
    ) -> list:
        """Call `function` with NumPy arrays from a step; return its results as tensors. See `HostCalls`."""

        if self.rehearses:
            shapes = [[length or 0 for length in shape] for shape, _ in results]
            zeros = [np.zeros(shape, dtype) for shape, (_, dtype) in zip(shapes, results, strict=True)]
            return self._host_calls(lambda *_: zeros, inputs, results)

        @functools.wraps(function, assigned=(), updated=())
        def guarded(*arrays: np.ndarray) -> Any:
            try:
                with np.errstate(over="ignore", invalid="ignore"):  # gradients may overflow; optimizers check
                    return function(*arrays)
            except Exception as error:
                self.failure = error
                raise

        return self._host_calls(guarded, inputs, results, stay)

    @contextlib.contextmanager
    def explained(self, on_failure: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Have a `with` block raise the original exception of a call, without the backend's wrapping.

        Args:
            on_failure: Function. Called on any exception but the end of the data. Defaults to none.
        """
        self.failure = None
        try:
            yield
        except self._end_of_data:
            raise
        except BaseException:
            on_failure()
            if self.failure is not None:
                raise self.failure from None
            raise
