"""The function that Keras calls for each step of a `fit()`, while all workers make it together."""

from collections.abc import Callable, Iterator
from typing import Any

import keras

from easyscale import backend as backends

__all__ = ["TrainFunction"]


class TrainFunction:
    """A model's train function, called through another function.

    Args:
        model: The model, for which Keras has made a train function.
        step: Function. Takes this object and the iterator over batches; called in place of `function`.

    Attributes:
        function: Function of an iterator. Keras's own, traced at its first call.
        has_ended: Bool. Whether its last call found no more data, so that no step was made.
    """

    def __init__(self, model: keras.Model, step: Callable[..., Any]):
        self._backend = backends.get()
        self.function = self._backend.steps.train_function(model)
        self._called = self._backend.steps.called_by_keras(model, self._make_step)
        self.begin()
        self._step, self._made_for, self._rehearsed = step, _way_to_make(model), False

    def begin(self) -> None:
        """Start a `fit()` in which no step has been made."""
        self._logs: Any = {}
        self.has_ended = False

    def is_for(self, model: keras.Model) -> bool:
        """Return whether Keras would make the same function for the model as it is now."""
        return self._made_for == _way_to_make(model)

    def __call__(self, *given: Any) -> Any:
        return self._called(*given)

    def _make_step(self, iterator: Iterator) -> Any:
        self.has_ended = False
        try:
            self._logs = self._step(self, iterator)
        except self._backend.end_of_data as error:
            self._backend.end_epoch(iterator, error)
            self.has_ended = True
        return self._logs

    def rehearse(self, rehearse: Callable[[Iterator], None], iterator: Iterator) -> None:
        """Trace a step on a server, which makes none: so it knows what is exchanged, and has metrics.

        Args:
            rehearse: Function. Called only once, because workers do not trace a step in every `fit()` either.
            iterator: Over the batches of the step.
        """
        if not self._rehearsed:
            self._rehearsed = True
            rehearse(iterator)


def _way_to_make(model: keras.Model) -> list:
    """Return what a train function depends on."""
    return [model.run_eagerly, model.jit_compile, model.steps_per_execution]
