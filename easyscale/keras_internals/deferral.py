"""What Keras has no public name for in variables that get their values later than they are made."""

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
    """Return whether Keras looks for shapes now, for which no variable needs its value."""
    return bool(importlib.import_module(_SCOPE).in_stateless_scope())


def initialize(variable: "keras.Variable", initializer: Callable[..., Any]) -> None:
    """Give a variable the value that an initializer makes, as Keras does when it makes the variable."""
    variable._initialize_with_initializer(initializer)


@contextlib.contextmanager
def initialized_by(replacement: Callable[["keras.Variable", Callable, Callable], None]) -> Iterator[None]:
    """Inside, `replacement(variable, initializer, original)` is called for each variable that an initializer makes."""
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
    """Inside, Keras writes a file of a model piece by piece, and does not make all of it in memory before."""
    module: Any = importlib.import_module(_SAVING)
    original, module.is_memory_sufficient = module.is_memory_sufficient, lambda model: False
    try:
        yield
    finally:
        module.is_memory_sufficient = original
