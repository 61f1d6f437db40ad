"""What Keras calls for each step on JAX: with a state that it takes out of the model before."""

from collections.abc import Callable, Iterator
from typing import Any

import keras

from easyscale import keras_internals
from easyscale.backend.jax.variables import set_values, values_of

__all__ = ["called_with_state", "make_train_function", "of_iterator"]


def of_iterator(model: keras.Model, step: Callable[[Any], Any]) -> Callable[[Iterator], Any]:
    """Return a function of an iterator over batches that makes `steps_per_execution` steps of a model."""

    def steps(iterator: Iterator) -> Any:
        logs = step(next(iterator))
        for _ in range(model.steps_per_execution - 1):
            try:
                data = next(iterator)
            except StopIteration:
                break
            logs = step(data)
        return logs

    return steps


def called_with_state(model: keras.Model, function: Callable[[Iterator], Any]) -> Callable[..., tuple]:
    """Return what Keras calls with a state and an iterator, given a function of the iterator that uses variables.

    What has been taken out of the model is in it again, and stays: whatever callbacks do with it counts.
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
        finally:  # also where data have ended
            keras_internals.leave_state_in(model)
        return logs, tuple(values_of(variables) for variables in kinds)

    return call


def make_train_function(model: keras.Model, force: bool = False) -> None:
    """Have Keras call, for each step, a model's step of a batch alone, where it would compile one of a state."""
    if model.train_function is None or force:
        model.train_function = called_with_state(model, of_iterator(model, model.train_step))
