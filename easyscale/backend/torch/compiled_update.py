"""The update of weights by the mean of all workers' gradients."""

import contextlib
from collections.abc import Callable, Sequence

import torch

from easyscale.backend.torch import fused
from easyscale.layout.specs import Variable
from easyscale.step.context import Gradient

__all__ = ["EagerUpdate"]


class EagerUpdate:
    """Calls functions that update variables, by the same kernels on all workers. What others compile is fused here.

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
            steps = fused.at_work() if compiles else contextlib.nullcontext()
            with torch.no_grad(), steps:  # a server's thread has not said so
                apply(list(gradients), list(variables))

    def forget(self) -> None:
        """There is nothing to forget."""
