"""The update of weights by the mean gradients of all workers, compiled."""

from collections.abc import Callable, Sequence

import keras

from easyscale.backend.jax.graph import Graph
from easyscale.backend.jax.host_calls import is_tracing
from easyscale.backend.jax.variables import traced_values_of
from easyscale.keras_internals import in_stateless_scope
from easyscale.layout.specs import Variable
from easyscale.step.context import Gradient

__all__ = ["CompiledUpdate"]


class CompiledUpdate:
    """Compiles functions that update variables, unless a whole step is being compiled. See `base.CompiledUpdate`."""

    def __init__(self) -> None:
        self._graphs: dict[tuple, Graph] = {}

    def __call__(
        self,
        apply: Callable[[list, list], None],
        gradients: Sequence[Gradient],
        variables: Sequence[Variable],
        compiles: bool = False,
    ) -> None:
        owner = getattr(apply, "__self__", apply)
        update = _scaled_update(owner) if isinstance(owner, keras.optimizers.LossScaleOptimizer) else apply
        if is_tracing() or in_stateless_scope():
            update(list(gradients), list(variables))
            return
        key = id(owner), *map(id, variables)
        if key not in self._graphs:
            chosen = list(variables)
            self._graphs[key] = Graph(lambda gradients: update(gradients, chosen))
        self._graphs[key](list(gradients))

    def forget(self) -> None:
        self._graphs.clear()


def _scaled_update(optimizer: keras.optimizers.LossScaleOptimizer) -> Callable[[list, list], None]:
    """Return `optimizer.apply` for code that is being compiled, in which its branches cannot assign variables."""

    def update(gradients: list, variables: list[Variable]) -> None:
        state = list(optimizer.variables)
        values = optimizer.stateless_apply(traced_values_of(state), gradients, traced_values_of(variables))
        for variable, value in zip([*variables, *state], [*values[0], *values[1]], strict=True):
            variable.assign(value)

    return update
