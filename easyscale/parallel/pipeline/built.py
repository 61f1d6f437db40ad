"""Notifications of models that are built in a pipeline's scope."""

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import keras

from easyscale.communicator import Communicator
from easyscale.parallel.pipeline.deferred import defer_values, wrapped

__all__ = ["built_for", "on_built"]

_Act = Callable[[Any, Any, Communicator], Any]
_acts: list[_Act] = []
_untold: list[tuple[weakref.ref, Any, Communicator]] = []  # models built before there was an act


def on_built(act: _Act) -> None:
    """Call `act(model, pipeline, communicator)` for each model built in a scope, including earlier ones."""
    _acts.append(act)
    _tell()


@contextlib.contextmanager
def built_for(pipeline: Any, communicator: Communicator) -> Iterator[None]:
    """Build models with deferred weights within this context; see `defer_values`.

    Args:
        pipeline: The `Pipeline`.
        communicator: The `Communicator` of all ranks.
    """
    models: list[keras.Model] = []

    def noted(original: Callable, model: keras.Model, *args: Any, **kwargs: Any) -> None:
        models.append(model)
        original(model, *args, **kwargs)

    with defer_values(), wrapped(keras.Model, "__init__", noted):
        yield
    _untold.extend((weakref.ref(model), pipeline, communicator) for model in {id(one): one for one in models}.values())
    _tell()


def _tell() -> None:
    while _acts and _untold:
        model, pipeline, communicator = _untold.pop(0)
        for act in _acts if model() is not None else ():
            act(model(), pipeline, communicator)
