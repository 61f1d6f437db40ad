"""Access to the functions that Keras builds for a model's steps."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["KerasSteps"]


class KerasSteps:
    """Functions for a model's steps, which take an iterator over batches, or a batch, and nothing else.

    A framework whose steps Keras calls differently has a subclass of this.
    """

    def method_of(self, model: Any, name: str) -> Callable[..., Any]:
        """Return a model's method; `train_step` and `test_step` as functions of a batch.

        These change variables in place. They can still be called as Keras calls them.
        """
        return getattr(model, name)

    def train_function(self, model: Any) -> Callable[[Iterator], Any]:
        """Return a function that runs one step, or `steps_per_execution`, of `model.train_step` on an iterator."""
        return model.train_function

    def test_function(self, model: Any) -> Callable[..., Any]:
        """Return the function that Keras calls for each step of an evaluation on all workers."""
        return model.test_function

    def make_train_function(self, model: Any, make: Callable[[], Any], force: bool) -> None:
        """Build the train function of a model of many workers, also outside of `fit()`; `make` is Keras's builder."""
        make()

    def called_by_keras(self, model: Any, function: Callable[[Iterator], Any]) -> Callable[..., Any]:
        """Return the function that Keras calls for each step, given a function of the iterator over batches."""
        return function

    def renew(self, model: Any) -> None:
        """Called after a model was compiled: its steps have changed."""

    def end_evaluation(self, model: Any) -> dict:
        """Have Keras end an `evaluate()`, called in place of a step; return empty logs if that raises nothing."""
        raise StopIteration

    def watch(self, model: Any, watch: Callable[[Callable[[Any], Any], Any, Any], Any]) -> None:
        """Have `watch(step, model, data)` run each step of the model's next `fit()`s, by calling `step(data)`."""
        object.__setattr__(model, "train_step", functools.partial(watch, model.train_step, model))
        model.train_function = None
