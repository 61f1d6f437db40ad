"""Functions that change variables, compiled: a training step, a pass of it, the update of weights. See `Graph`."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import keras

from easyscale.backend.jax.foreign_calls import ForeignCall
from easyscale.backend.jax.host_calls import last_call, tracing
from easyscale.backend.jax.variables import set_values, traced_values_of, values_of
from easyscale.layout.specs import Variable

__all__ = ["Graph", "Touched", "holding"]


class Touched(keras.StatelessScope):
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
    """A function compiled for arguments of one structure, as a function of the variables' values.

    Args:
        function: Function of `arguments`.
        arguments: Tuple of arguments, or others of the same structure and shapes.
    """

    def __init__(self, function: Callable[..., Any], arguments: tuple):
        self._function, self._calls = function, list[ForeignCall]()
        touched = Touched()
        jax.eval_shape(lambda given: self._run(touched, given), arguments)
        self._changed = [one for number, one in touched.read.items() if number in touched.written]
        self._others = [one for number, one in touched.read.items() if number not in touched.written]
        self._written = [
            *self._changed,
            *(one for number, one in touched.written.items() if number not in touched.read),
        ]
        self._calls.clear()
        self._compiled = jax.jit(self._of_values)

    def _run(self, scope: Touched, arguments: tuple) -> tuple[Any, Any]:
        with scope, tracing(self._calls):
            return self._function(*arguments), last_call()

    def _of_values(self, changed: list, others: list, arguments: tuple) -> tuple[Any, list]:
        scope = Touched([*self._changed, *self._others], [*changed, *others])
        returned = self._run(scope, arguments)
        return returned, [scope.get_current_value(variable) for variable in self._written]

    def __call__(self, arguments: tuple) -> Any:
        # By the end all calls are over, and an error of theirs is raised here.
        (returned, _), values = jax.block_until_ready(
            self._compiled(values_of(self._changed), values_of(self._others), arguments)
        )
        set_values(self._written, values)
        return returned


class Graph:
    """A function of arrays that reads and changes variables, compiled for each structure of its arguments.

    Calls of Python in it run in the order in which they are traced. The function is traced twice: first to see which
    variables it uses.

    Args:
        function: Function. Takes and returns trees of arrays.
    """

    def __init__(self, function: Callable[..., Any]):
        self._function = function
        self._compiled: dict[tuple, _Compiled] = {}

    def __call__(self, *arguments: Any) -> Any:
        return self.traced(*arguments)(arguments)

    def traced(self, *arguments: Any) -> _Compiled:
        """Return the compiled function for arguments of this structure, which is not called."""
        leaves, structure = jax.tree.flatten(arguments)
        key = structure, *((leaf.shape, leaf.dtype) for leaf in leaves)
        if key not in self._compiled:
            self._compiled[key] = _Compiled(self._function, arguments)
        return self._compiled[key]

    def forget(self) -> None:
        """Discard everything compiled, because the function has changed."""
        self._compiled.clear()


@contextlib.contextmanager
def holding(variables: Sequence[Variable]) -> Iterator[None]:
    """Keep the current values of variables within this context, also in scopes of Keras's that do not have them."""
    before, values = values_of(variables), traced_values_of(variables)
    set_values(variables, values)
    try:
        yield
    finally:
        set_values(variables, before)
