"""The functions by which Keras makes the steps of a model, as EasyScale asks for them."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["KerasSteps"]


class KerasSteps:
    """How a model's steps are called: here by functions of an iterator over batches, or of a batch, and of no more.

    A framework whose steps Keras calls otherwise has a subclass of this.
    """

    def method_of(self, model: Any, name: str) -> Callable[..., Any]:
        """Return a method that a model has; its `train_step` and `test_step` as functions of a batch.

        As such they change variables in place. They may still be called as Keras calls them.
        """
        return getattr(model, name)

    def train_function(self, model: Any) -> Callable[[Iterator], Any]:
        """Return what makes a step, or `steps_per_execution`, of the batches of an iterator by `model.train_step`."""
        return model.train_function

    def test_function(self, model: Any) -> Callable[..., Any]:
        """Return what Keras calls for each step of an evaluation of all workers."""
        return model.test_function

    def make_train_function(self, model: Any, make: Callable[[], Any], force: bool) -> None:
        """Have Keras call a model's step, of many workers, also outside of a `fit()`; `make` does what Keras does."""
        make()

    def called_by_keras(self, model: Any, function: Callable[[Iterator], Any]) -> Callable[..., Any]:
        """Return what Keras calls for each step, given a function of the iterator over batches."""
        return function

    def renew(self, model: Any) -> None:
        """Take in that a model has been compiled: its steps are others than those before."""

    def release(self, model: Any) -> None:
        """Let go of what the steps of a `fit()` that is over have kept for the next."""

    def end_evaluation(self, model: Any) -> dict:
        """Have Keras end an `evaluate()`, called in place of a step; return logs of none if that raises nothing."""
        raise StopIteration

    def watch(self, model: Any, watch: Callable[[Callable[[Any], Any], Any, Any], Any]) -> None:
        """Have `watch(step, model, data)` make each step of a model's next `fit()`s, by `step(data)`."""
        object.__setattr__(model, "train_step", functools.partial(watch, model.train_step, model))
        model.train_function = None
