"""The update of weights by the mean of all workers' gradients."""

from collections.abc import Callable, Sequence

import torch

from easyscale.layout.specs import Variable
from easyscale.step.interfaces import Gradient

__all__ = ["EagerUpdate"]


class EagerUpdate:
    """Calls functions that update variables. Each is the same kernels on all workers, so nothing has to be compiled.

    Args:
        rehearses: Function. Returns whether a step is rehearsed, which updates nothing.
    """

    def __init__(self, rehearses: Callable[[], bool]):
        self._rehearses = rehearses

    def __call__(
        self,
        apply: Callable[[list, list], None],
        gradients: Sequence[Gradient],
        variables: Sequence[Variable],
        compiles: bool = False,
    ) -> None:
        if not self._rehearses():
            with torch.no_grad():  # a server's thread has not said so
                apply(list(gradients), list(variables))

    def forget(self) -> None:
        """There is nothing to forget."""
