"""The function that Keras calls for each step of an `evaluate()` of all workers."""

from collections.abc import Callable
from typing import Any

import keras

from easyscale import backend as backends

__all__ = ["TestFunction"]


class TestFunction:
    """Replaces the test function of a model during an `evaluate()` of all workers.

    Args:
        model: The model.
    """

    __test__ = False  # tells pytest that this is no test

    def __init__(self, model: keras.Model):
        self._model = model
        self._made: Callable[..., Any] | None = None
        self._of_all: Callable[..., Any] | None = None

    def begin(self, is_server: bool) -> None:
        """Start an `evaluate()` of all workers. Servers have no data for it."""
        self._made = self._model.test_function
        steps = backends.get().steps
        if is_server:
            self._of_all = steps.called_by_keras(self._model, lambda iterator: steps.end_evaluation(self._model))
        else:
            self._of_all = steps.test_function(self._model)
        self._model.test_function = self._of_all

    def end(self) -> None:
        """End it. Restore the function that Keras had made, unless it has been reset meanwhile."""
        if self._model.test_function is self._of_all:
            self._model.test_function = self._made
