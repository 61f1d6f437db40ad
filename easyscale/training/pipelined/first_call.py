"""Cutting of a model that was built in `scope()` and is called before its first `fit()`."""

import functools
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np

from easyscale import keras_internals
from easyscale.communicator import Communicator
from easyscale.parallel.pipeline.forward_pass import StageLayers
from easyscale.parallel.pipeline.pipeline import Pipeline
from easyscale.training.pipelined.distribution import PipelineDistribution

__all__ = ["FirstCall", "set_options"]

_options: weakref.WeakKeyDictionary[Pipeline, Mapping[str, Any]] = weakref.WeakKeyDictionary()


def set_options(pipeline: Pipeline, options: Mapping[str, Any]) -> None:
    """Set the options of the exchange between pipelines, for a call before the first `fit()`.

    Args:
        pipeline: The `Pipeline`.
        options: Dict. Arguments of `DistributedOptimizer`.
    """
    _options[pipeline] = options


class FirstCall:
    """Cuts a model that evaluates, predicts, or is called, on all ranks, before a `fit()` has cut it.

    Each rank then creates the weights of its stage, and loaded values are sent to the stages, as at the start of a
    `fit()`. With `cut="time"` the chief measures the passes of each layer first. The next `fit()` continues with these
    weights.

    Args:
        model: The model.
        pipeline: The `Pipeline` in whose scope it was built.
        communicator: The `Communicator` of all ranks.
    """

    def __init__(self, model: keras.Model, pipeline: Pipeline, communicator: Communicator):
        self._model, self._pipeline, self._communicator = model, pipeline, communicator
        for name in ("evaluate", "predict", "test_on_batch", "predict_on_batch"):
            self._replace(name, self._together)
        self._replace("call", self._call)

    def _replace(self, name: str, replacement: Callable) -> None:
        original = getattr(self._model, name)
        object.__setattr__(self._model, name, functools.partial(replacement, name, original))

    @property
    def _is_cut(self) -> bool:
        return PipelineDistribution.trains(self._model) and PipelineDistribution.of(self._model).is_cut

    def _together(self, name: str, original: Callable, *args: Any, **kwargs: Any) -> Any:
        if self._is_cut or getattr(self._model, "optimizer", None) is None:
            return original(*args, **kwargs)
        options = _options.get(self._pipeline, {})
        PipelineDistribution.of(self._model).cut_for(self._pipeline, self._communicator, options)
        return getattr(self._model, name)(*args, **kwargs)

    def _call(self, name: str, original: Callable, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        # Shape inference needs no values, and in a graph, as in a `fit()` without `Distribute`, it is too late.
        is_late = not all(map(_is_eager, keras.tree.flatten(inputs)))
        # A model nested in another is called as part of a stage.
        if keras_internals.in_stateless_scope() or is_late or StageLayers.under_way:
            return original(inputs, *args, **kwargs)
        return self._together(name, original, inputs, *args, **kwargs)


def _is_eager(tensor: Any) -> bool:
    return tensor is None or hasattr(tensor, "numpy") or isinstance(tensor, np.ndarray)
