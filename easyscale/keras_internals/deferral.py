"""Private names of Keras for variables that are initialized after their creation."""

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import keras

__all__ = ["in_stateless_scope", "initialize", "initialized_by", "on_disk"]

_BACKEND = "keras.src.backend"
_SCOPE = "keras.src.backend.common.stateless_scope"
_SAVING = "keras.src.saving.saving_lib"


def in_stateless_scope() -> bool:
    """Return whether Keras is inferring shapes now, for which variables need no values."""
    return bool(importlib.import_module(_SCOPE).in_stateless_scope())


def initialize(variable: "keras.Variable", initializer: Callable[..., Any]) -> None:
    """Initialize a variable, as Keras does on creation."""
    variable._initialize_with_initializer(initializer)


@contextlib.contextmanager
def initialized_by(replacement: Callable[["keras.Variable", Callable, Callable], None]) -> Iterator[None]:
    """Return a context in which `replacement(variable, initializer, original)` initializes variables."""
    kind: Any = importlib.import_module("keras").Variable
    had, original = "_initialize_with_initializer" in vars(kind), kind._initialize_with_initializer
    kind._initialize_with_initializer = lambda variable, initializer: replacement(variable, initializer, original)
    try:
        yield
    finally:
        if had:
            kind._initialize_with_initializer = original
        else:
            del kind._initialize_with_initializer


@contextlib.contextmanager
def on_disk() -> Iterator[None]:
    """Return a context in which Keras writes a model file piece by piece, instead of building it in memory first."""
    module: Any = importlib.import_module(_SAVING)
    original, module.is_memory_sufficient = module.is_memory_sufficient, lambda model: False
    try:
        yield
    finally:
        module.is_memory_sufficient = original
