"""The functions that Keras calls for each step on PyTorch: with data, where other backends receive an iterator."""

from collections.abc import Callable, Iterator
from typing import Any

from easyscale.backend import keras_steps
from easyscale.backend.torch import data

__all__ = ["KerasSteps"]


class KerasSteps(keras_steps.KerasSteps):
    """Steps that turn the data from Keras into an iterator."""

    def train_function(self, model: Any) -> Callable[[Iterator], Any]:
        return data.by_iterator(model.train_function, model.steps_per_execution)

    def called_by_keras(self, model: Any, function: Callable[[Iterator], Any]) -> Callable[..., Any]:
        return lambda given: function(data.iterator_of(given))

    def end_evaluation(self, model: Any) -> dict:
        model.stop_evaluating = True
        return {}
