"""Weights that get values only after they are assigned to a rank: elsewhere they never take memory."""

import collections
import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import keras
import numpy as np

from easyscale import backend as backends
from easyscale import keras_internals
from easyscale.errors import EasyScaleError

__all__ = [
    "DeferredVariable",
    "defer_values",
    "has_value",
    "identified",
    "is_deferred",
    "make",
    "made_for_now",
    "read_by",
    "release",
    "wrapped",
]

_Read = Callable[["DeferredVariable"], Any]
_reading: list[_Read] = []  # sources of values that are not on this rank


class Elsewhere(np.lib.mixins.NDArrayOperatorsMixin):
    """A placeholder for the value of a weight on another rank. `set_weights` accepts it; any other use is an error.

    Args:
        path: String. The path of the weight.
        shape: Tuple. Its shape.

    Attributes:
        shape: The same.
    """

    def __init__(self, path: str, shape: tuple[int, ...]):
        self._path, self.shape = path, shape

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise _not_here(self._path)

    def __array_ufunc__(self, *args: Any, **kwargs: Any) -> Any:
        raise _not_here(self._path)


def _not_here(path: str) -> EasyScaleError:
    return EasyScaleError(
        f"a weight must be on this rank to be read. Received: `{path}`, which is of another stage, or has no value "
        "before `fit()`. Train by `fit()` with `Distribute(model_parallel=...)`, not by `train_on_batch`; have all "
        "ranks call `save`, or build the model outside of `scope()`"
    )


class DeferredVariable(keras.Variable):
    """A variable without a value. It becomes a stock Keras variable when it is assigned one; reading it is an error.

    While Keras only infers shapes, its value is what its initializer makes, in a graph that is not run.
    """

    _easyscale_class: type[keras.Variable]
    _easyscale_initializer: Callable[..., Any]

    @property
    def value(self) -> Any:
        if keras_internals.in_stateless_scope():
            return self._maybe_autocast(self._easyscale_initializer(self.shape, dtype=self._dtype))
        if _reading:
            return self._maybe_autocast(_reading[-1](self))
        raise _not_here(self.path)

    def numpy(self) -> Any:
        """Return its value if that can be read from another rank, else its placeholder in `get_weights`."""
        return np.asarray(self.value) if _reading else Elsewhere(self.path, tuple(self.shape))

    def assign(self, value: Any) -> Any:
        """Become a stock variable with a value; ignore the placeholder that `numpy` returns."""
        return value if isinstance(value, Elsewhere) else super().assign(value)

    @property
    def regularizer(self) -> Any:
        """`None` while there is no value: the rank that has one computes the regularization loss."""
        return None

    @regularizer.setter
    def regularizer(self, value: Any) -> None:
        keras.Variable.regularizer.fset(self, value)

    def _direct_assign(self, value: Any) -> None:
        self.become(lambda *_, **__: value)

    def become(self, initializer: Callable[..., Any]) -> None:
        """Become a stock variable, with a value from an initializer."""
        variable = cast(keras.Variable, self)
        variable.__class__ = self._easyscale_class
        keras_internals.initialize(variable, initializer)

    def defer(self) -> None:
        """Drop the value."""
        self._value = None


def has_value(variable: keras.Variable) -> bool:
    """Return whether a variable has a value on this rank."""
    return not isinstance(variable, DeferredVariable)


def is_deferred(model: keras.Model) -> bool:
    """Return whether a model was built in a scope, so that each rank has the weights of its stage only."""
    return any("_easyscale_initializer" in vars(variable) for variable in model.variables)


def make(variable: keras.Variable) -> None:
    """Assign its initial value to a variable that has none, the same as in a single process."""
    if isinstance(variable, DeferredVariable):
        variable.become(variable._easyscale_initializer)


def release(variable: keras.Variable) -> None:
    """Free a variable's value and memory; integers, such as states of random generators, stay."""
    if has_value(variable) and keras.backend.is_float_dtype(variable.dtype):
        backends.get().hold(variable, None)  # a graph may still refer to it
        _defer(variable, vars(variable).get("_easyscale_initializer", keras.initializers.Zeros()))


def _defer(variable: keras.Variable, initializer: Callable[..., Any]) -> None:
    deferred = cast(DeferredVariable, variable)
    deferred._easyscale_class, deferred._easyscale_initializer = type(variable), initializer
    variable.__class__ = DeferredVariable
    deferred.defer()


@contextlib.contextmanager
def made_for_now(variables: Sequence[keras.Variable]) -> Iterator[None]:
    """Assign initial values within this context to variables that have none."""
    without = [variable for variable in variables if not has_value(variable)]
    for variable in without:
        make(variable)
    try:
        yield
    finally:
        for variable in without:
            release(variable)


@contextlib.contextmanager
def read_by(read: _Read) -> Iterator[None]:
    """Use `read(variable)` as the value of variables that have none on this rank, within this context."""
    _reading.append(read)
    try:
        yield
    finally:
        _reading.pop()


@contextlib.contextmanager
def identified() -> Iterator[None]:
    """Allow optimizers to be built within this context: deferred weights get distinct dummy values as identities."""
    values = collections.defaultdict[int, keras.Variable](lambda: keras.Variable(np.zeros(0, "float32")))
    with read_by(lambda weight: values[id(weight)].value):
        yield


@contextlib.contextmanager
def defer_values() -> Iterator[None]:
    """Create float variables of layers and optimizers without values within this context.

    A value that depends on earlier draws, from an initializer that is not Keras's own or has a `SeedGenerator`, is
    created at once, in the order of a single process. So are values of layers' other variables, and all of metrics.
    """
    depth = 0

    def compiled(original: Callable, *args: Any, **kwargs: Any) -> Any:
        with identified():
            return original(*args, **kwargs)

    def counted(original: Callable, *args: Any, **kwargs: Any) -> Any:
        nonlocal depth
        depth += 1
        try:
            variable = original(*args, **kwargs)
        finally:
            depth -= 1
        if not keras_internals.has_value(variable) and has_value(variable):  # Keras initializes it later, outside
            variable._easyscale_initializer = None
        return variable

    def initialize(variable: keras.Variable, initializer: Callable, original: Callable) -> None:
        is_late = "_easyscale_initializer" in vars(variable)  # of a layer that is built by a call
        if (depth or is_late) and _is_repeatable(initializer) and keras.backend.is_float_dtype(variable.dtype):
            _defer(variable, initializer)
        else:
            original(variable, initializer)

    with keras_internals.initialized_by(initialize), contextlib.ExitStack() as stack:
        for owner, name in ((keras.layers.Layer, "add_weight"), (keras.optimizers.Optimizer, "add_variable")):
            stack.enter_context(wrapped(owner, name, counted))
        stack.enter_context(wrapped(keras.Model, "compile_from_config", compiled))
        yield


@contextlib.contextmanager
def wrapped(owner: type, name: str, around: Callable) -> Iterator[None]:
    """Replace a class's method by `around(original, ...)` within this context."""
    original, had = getattr(owner, name), name in vars(owner)

    @functools.wraps(original)
    def replaced(self: Any, *args: Any, **kwargs: Any) -> Any:
        return around(original, self, *args, **kwargs)

    setattr(owner, name, replaced)
    try:
        yield
    finally:
        if had:
            setattr(owner, name, original)
        else:
            delattr(owner, name)


def _is_repeatable(initializer: Any) -> bool:
    """Return whether an initializer makes the same value in every call."""
    return type(initializer).__module__.startswith("keras.") and isinstance(getattr(initializer, "seed", 0), int)
