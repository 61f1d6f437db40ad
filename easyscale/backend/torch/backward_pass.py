"""Per-gradient hooks for PyTorch's backward pass."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from easyscale.backend.torch import on_gpus
from easyscale.backend.torch.variables import array_of, native_of
from easyscale.layout.specs import Variable

__all__ = ["WatchedPass"]


class WatchedPass:
    """See `base.BackwardPass`. PyTorch calls a weight's hook when its gradient is complete."""

    def reached(self, loss: torch.Tensor, variables: Sequence[Variable]) -> list[bool]:
        reached: set[int] = set()
        seen = {loss.grad_fn}
        left = [loss.grad_fn]
        while left:
            function = left.pop()
            if hasattr(function, "variable"):
                reached.add(id(function.variable))
            for other, _ in getattr(function, "next_functions", ()):
                if other is not None and other not in seen:
                    seen.add(other)
                    left.append(other)
        return [id(native_of(variable)) in reached for variable in variables]

    def watch(self, variables: Mapping[int, Variable], tell: Callable[[int, torch.Tensor], None]) -> Callable[[], None]:
        def on_gradient(number: int, weight: torch.Tensor) -> None:
            tell(number, weight.grad)

        hooks = [
            native_of(variable).register_post_accumulate_grad_hook(functools.partial(on_gradient, number))
            for number, variable in variables.items()
        ]

        def end() -> None:
            while hooks:
                hooks.pop().remove()

        return end

    def copies(self, values: Sequence[Any]) -> Callable[[], list[np.ndarray]]:
        come = on_gpus.coming(values)
        return lambda: [array_of(value) for value in come()]
