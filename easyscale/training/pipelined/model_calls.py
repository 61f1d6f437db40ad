"""Calls of a model that pipelines train, except `fit()` and methods that write files."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import keras

from easyscale import keras_internals
from easyscale.mesh import Mesh
from easyscale.training.pipelined.evaluation import Evaluation
from easyscale.training.pipelined.staged_calls import StagedCalls

__all__ = ["ModelCalls"]


class ModelCalls:
    """`evaluate` and `predict`, for ranks with the whole model, or with only their stage.

    Args:
        model: The model.
        is_training: Function. Returns whether a `fit()` is in progress.
        bring_together: Function. Gathers all weights on all ranks.

    Attributes:
        REPLACED: The methods of a model that those of the same name replace; these take the model's own one first.
        staged: `StagedCalls`. Defaults to `None`: each rank has the whole model when it evaluates.
    """

    REPLACED = ("evaluate", "predict", "test_on_batch", "test_step")

    def __init__(self, model: keras.Model, is_training: Callable[[], bool], bring_together: Callable[[], None]):
        self._model, self._is_training, self._bring_together = model, is_training, bring_together
        self._evaluation: Evaluation | None = None
        self._made_for: tuple = ()
        self.staged: StagedCalls | None = None

    def prepare(self, mesh: Mesh, options: Mapping[str, Any]) -> None:
        """Set the pipelines that evaluate together.

        Args:
            mesh: The `Mesh`.
            options: Dict. Arguments of `DistributedOptimizer`.
        """
        if (made_for := (mesh, dict(options))) != self._made_for:
            self._evaluation, self._made_for = Evaluation(self._model, mesh["data"], options), made_for
        self.end()  # an evaluation that was interrupted

    @property
    def _evaluates(self) -> Evaluation:
        assert self._evaluation is not None  # `prepare` makes it
        return self._evaluation

    def begin(self) -> None:
        """Start an evaluation of all ranks."""
        self._evaluates.begin()

    def end(self) -> None:
        """End an evaluation of all ranks."""
        self._evaluates.end()

    @property
    def are_evaluating(self) -> bool:
        """True during an evaluation whose results all ranks, or the stages of this pipeline, share."""
        return self._evaluates.is_together or (self.staged is not None and self.staged.is_evaluating)

    def results(self, original: Callable, logs: dict) -> dict:
        """Return the logs of an evaluation when its data has ended, or `original(logs)`."""

        def own() -> dict:
            return self._evaluates.merge(logs) if self._evaluates.is_together else original(logs)

        return self.staged.results(own) if self.staged is not None and self.staged.is_evaluating else own()

    def evaluate(self, original: Callable, *args: Any, **kwargs: Any) -> Any:
        if self._is_training() and keras_internals.OF_FIT in kwargs and self.staged is None:  # all ranks validate
            self._bring_together()
        return self._evaluate(functools.partial(self._evaluates.run, original, *args, **kwargs))

    def test_on_batch(self, original: Callable, *args: Any, **kwargs: Any) -> Any:
        return self._evaluate(functools.partial(original, *args, **kwargs))

    def _evaluate(self, evaluate: Callable[[], Any]) -> Any:
        if self.staged is None:
            return evaluate()
        with self.staged.together(self._is_training()):
            return self.staged.evaluate(evaluate)

    def test_step(self, original: Callable, data: Any) -> Any:
        step = functools.partial(self._evaluates.step, original)
        return step(data) if self.staged is None else self.staged.step(step, data)

    def predict(self, original: Callable, *args: Any, **kwargs: Any) -> Any:
        if self.staged is None:
            return original(*args, **kwargs)
        with self.staged.together(self._is_training()):
            return original(*args, **kwargs)
