"""The update of weights by the mean gradients of all workers."""

import contextlib
from collections.abc import Callable, Sequence

import torch

from easyscale.backend.torch import fused
from easyscale.layout.specs import Variable
from easyscale.step.context import Gradient

__all__ = ["EagerUpdate"]


class EagerUpdate:
    """Calls functions that update variables, with the same kernels on all workers. Fused kernels replace compilation.

    Args:
        rehearses: Function. Returns whether the step is a rehearsal, which updates nothing.
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
            steps = fused.at_work() if compiles else contextlib.nullcontext()
            with torch.no_grad(), steps:  # `no_grad` is per thread, and a server's lacks it
                apply(list(gradients), list(variables))

    def forget(self) -> None:
        """Do nothing: nothing is cached."""
