"""The update of weights by the mean gradients of all workers, compiled."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import keras

from easyscale.backend.jax.variables import set_values, values_of
from easyscale.keras_internals import in_stateless_scope
from easyscale.layout.specs import Variable
from easyscale.step.context import Gradient

__all__ = ["CompiledUpdate"]


class _Touched(keras.StatelessScope):
    """Records which variables a function reads and writes; the caller knows only some of them."""

    def __init__(self, variables: Sequence[Variable] = (), values: Sequence[Any] = ()):
        super().__init__(list(zip(variables, values, strict=True)))
        self.read: dict[int, Variable] = {}
        self.written: dict[int, Variable] = {}

    def get_current_value(self, variable: Variable) -> Any:
        self.read.setdefault(id(variable), variable)
        return super().get_current_value(variable)

    def add_update(self, update: tuple[Variable, Any]) -> None:
        self.written.setdefault(id(update[0]), update[0])
        super().add_update(update)


class _Compiled:
    """A function that changes variables, compiled as a function of their values.

    Args:
        apply: Function of a list of gradients and a list of variables.
        gradients: The gradients, or others of the same shapes; some may be `None`.
        variables: The variables.
    """

    def __init__(self, apply: Callable[[list, list], None], gradients: Sequence[Gradient], variables: Sequence):
        self._apply, self._variables = apply, list(variables)
        touched = _Touched()
        jax.eval_shape(lambda given: self._run(touched, given), list(gradients))
        self._read, self._written = list(touched.read.values()), list(touched.written.values())
        self._compiled = jax.jit(self._changed)

    def _run(self, scope: _Touched, gradients: list) -> None:
        with scope:
            self._apply(gradients, self._variables)

    def _changed(self, values: list, gradients: list) -> list:
        scope = _Touched(self._read, values)
        self._run(scope, gradients)
        return [scope.get_current_value(variable) for variable in self._written]

    def __call__(self, gradients: Sequence[Gradient]) -> None:
        set_values(self._written, self._compiled(values_of(self._read), list(gradients)))


class CompiledUpdate:
    """Compiles functions that update variables, as Keras compiles its own step on JAX. See `base.CompiledUpdate`."""

    def __init__(self) -> None:
        self._made: dict[tuple, _Compiled] = {}

    def __call__(
        self,
        apply: Callable[[list, list], None],
        gradients: Sequence[Gradient],
        variables: Sequence[Variable],
        compiles: bool = False,
    ) -> None:
        if in_stateless_scope():  # a single process: Keras compiles the whole step
            apply(list(gradients), list(variables))
            return
        owner = getattr(apply, "__self__", apply)
        shapes = [None if gradient is None else (gradient.shape, gradient.dtype) for gradient in gradients]
        key = id(owner), *map(id, variables), *shapes
        if key not in self._made:
            self._made[key] = _Compiled(apply, gradients, variables)
        self._made[key](gradients)

    def forget(self) -> None:
        self._made.clear()
