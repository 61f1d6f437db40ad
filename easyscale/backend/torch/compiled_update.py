"""The update of weights by the mean of all workers' gradients."""

from collections.abc import Callable, Sequence

from easyscale.layout.specs import Variable
from easyscale.step.interfaces import Gradient

__all__ = ["EagerUpdate"]


class EagerUpdate:
    """Calls functions that update variables. Each is the same kernels on all workers, so nothing has to be compiled."""

    def __call__(
        self,
        apply: Callable[[list, list], None],
        gradients: Sequence[Gradient],
        variables: Sequence[Variable],
        compiles: bool = False,
    ) -> None:
        apply(list(gradients), list(variables))

    def forget(self) -> None:
        """There is nothing to forget."""
