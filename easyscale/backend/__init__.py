"""The supported frameworks, one subpackage each.

`base` defines the interface that all of them implement; `keras_steps` covers how Keras calls a model's steps.

`get` returns the backend that Keras uses. To read a value only, use the functions here.
"""

import functools
import importlib
import pkgutil
from typing import Any

import numpy as np

from easyscale import keras_backend
from easyscale.backend.base import Backend
from easyscale.layout.specs import Variable

__all__ = ["available", "dataset_of", "get", "value_of", "view_of"]


def available() -> list[str]:
    """Return the Keras names of all backends, sorted.

    Example:

    >>> easyscale.backend.available()
    ['jax', 'tensorflow', 'torch']
    """
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.ispkg)


def get() -> Backend:
    """Return the backend that Keras uses.

    Raises:
        ValueError: If EasyScale does not support it.
        EasyScaleError: If `KERAS_BACKEND` names another one.
    """
    return _get(importlib.import_module("keras").backend.backend())


@functools.cache
def _get(name: str) -> Backend:
    if name not in available():
        raise ValueError(
            f"the Keras backend must be {' or '.join(map(repr, available()))}. Received: '{name}'. "
            "Set KERAS_BACKEND=tensorflow"
        )
    keras_backend.check_choice(name)
    return importlib.import_module(f"{__name__}.{name}.backend").BACKEND


def view_of(variable: Variable) -> np.ndarray:
    """Return a read-only view of a variable's value; see `Backend.view`."""
    return get().view(variable)


def value_of(variable: Variable) -> np.ndarray:
    """Return a copy of a variable's value."""
    return np.array(view_of(variable))


def dataset_of(epoch_iterator: Any) -> Any:
    """Return the data of a `fit()`; see `Backend.dataset_of`."""
    return get().dataset_of(epoch_iterator)
