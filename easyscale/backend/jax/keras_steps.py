"""The functions that Keras calls for each step on JAX, with a state that it has taken out of the model."""

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import keras

from easyscale import keras_internals
from easyscale.backend import keras_steps
from easyscale.backend.jax.live_step import LiveStep
from easyscale.backend.jax.variables import set_values, values_of

__all__ = ["KerasSteps"]


class KerasSteps(keras_steps.KerasSteps):
    """Replaces a model's own steps by `LiveStep`s, where Keras would compile a function of a state."""

    def method_of(self, model: keras.Model, name: str) -> Callable[..., Any]:
        own = getattr(model, name)
        if isinstance(own, LiveStep) or name not in ("train_step", "test_step"):
            return own
        return LiveStep(model, own, name == "train_step")

    def train_function(self, model: keras.Model) -> Callable[[Iterator], Any]:
        return _of_iterator(model, model.train_step)

    def test_function(self, model: keras.Model) -> Callable[..., Any]:
        return self.called_by_keras(model, _of_iterator(model, model.test_step))

    def make_train_function(self, model: keras.Model, make: Callable[[], Any], force: bool) -> None:
        if model.train_function is None or force:
            model.train_function = self.called_by_keras(model, self.train_function(model))

    def called_by_keras(self, model: keras.Model, function: Callable[[Iterator], Any]) -> Callable[..., Any]:
        """Turn a function of an iterator, which uses variables, into one of a state and an iterator for Keras.

        State taken out of the model is put back, and stays there, so that changes by callbacks take effect.
        """

        def call(state: tuple, iterator: Iterator) -> tuple[Any, tuple]:
            trains = len(state) == 4
            kinds = [model.trainable_variables, model.non_trainable_variables, model.metrics_variables]
            if trains:
                kinds.insert(2, model.optimizer.variables)
            for variables, values in zip(kinds, state, strict=True):
                set_values(variables, values)
            try:
                logs = function(iterator)
            finally:  # also at the end of the data
                keras_internals.leave_state_in(model)
            return logs, tuple(values_of(variables) for variables in kinds)

        return call

    def renew(self, model: keras.Model) -> None:
        """Wrap the steps again to force a retrace: JAX caches by function identity."""
        for name in ("train_step", "test_step"):
            if isinstance(step := vars(model).get(name), functools.partial):
                object.__setattr__(model, name, functools.partial(step.func, *step.args))

    def release(self, model: keras.Model) -> None:
        step = vars(model).get("train_step")
        for part in (step, *getattr(step, "args", ())):  # it may be wrapped by the function that replaces it
            if isinstance(part, LiveStep):
                part.release()

    def watch(self, model: keras.Model, watch: Callable[[Callable[[Any], Any], Any, Any], Any]) -> None:
        step = LiveStep(model, model.train_step, trains=True, watch=watch)
        make = functools.partial(self._make_alone, model)
        for name, own in (("train_step", step), ("make_train_function", make)):
            object.__setattr__(model, name, own)
        model.train_function = None

    def _make_alone(self, model: keras.Model, force: bool = False) -> None:
        self.make_train_function(model, lambda: None, force)


def _of_iterator(model: keras.Model, step: Callable[[Any], Any]) -> Callable[[Iterator], Any]:
    """Return a function of an iterator over batches that runs `steps_per_execution` steps of a model."""

    def steps(iterator: Iterator) -> Any:
        batches = keras_internals.batch_by_batch(iterator)
        logs = step(next(batches))
        for data in itertools.islice(batches, model.steps_per_execution - 1):
            logs = step(data)
        return logs

    return steps
