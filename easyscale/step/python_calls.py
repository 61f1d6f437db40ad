"""Calls of Python from a graph, and what comes out of it when one has failed."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from easyscale.backend.base import Backend

__all__ = ["PythonCalls"]


class PythonCalls:
    """Calls Python from a graph, one call after the other, and knows what a call has raised there.

    A backend raises an error of its own then, with the first one as a text. `explained` raises the first one.

    Args:
        backend: The `Backend`.

    Attributes:
        failure: The exception that was last raised by a call, or `None`.
        rehearses: Bool. Whether it is in `rehearsing()`.
    """

    def __init__(self, backend: Backend):
        self._host_calls, self._end_of_data = backend.host_calls(), backend.end_of_data
        self.failure: Exception | None = None
        self.rehearses = False

    @contextlib.contextmanager
    def rehearsing(self) -> Iterator[None]:
        """Inside, nothing is called: zeros stand for what comes back. So a step can be made without the others."""
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
        """Call `function` with NumPy arrays from a step; return the tensors that it returns. See `HostCalls`."""

        if self.rehearses:
            shapes = [[length or 0 for length in shape] for shape, _ in results]
            zeros = [np.zeros(shape, dtype) for shape, (_, dtype) in zip(shapes, results, strict=True)]
            return self._host_calls(lambda *_: zeros, inputs, results)

        @functools.wraps(function, assigned=(), updated=())
        def guarded(*arrays: np.ndarray) -> Any:
            try:
                with np.errstate(over="ignore", invalid="ignore"):  # gradients may overflow, and optimizers look
                    return function(*arrays)
            except Exception as error:
                self.failure = error
                raise

        return self._host_calls(guarded, inputs, results, stay)

    @contextlib.contextmanager
    def explained(self, on_failure: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Inside, what a call has raised is raised as it was, without the backend's wrapping.

        Args:
            on_failure: Function. Is called when anything but the end of the data is raised. Defaults to none.
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
