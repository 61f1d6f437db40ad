"""Fused updates: PyTorch kernels that pass over memory once, where Keras does so for each operation."""

import contextlib
import functools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import torch
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from easyscale.backend.torch.variables import native_of
from easyscale.keras_internals import replace_parallel_step, slots_of, trained_by
from easyscale.layout.specs import Variable

__all__ = ["advice", "at_work", "has_kernel"]

FROM = 1 << 20  # number of elements from which the advice is worth printing

# Makes the kernel's bias correction, 1 / (1 - beta^t), equal to 1: Keras's rate already contains that factor.
_STEPS_DONE = 1e9

_here = threading.local()  # `fused`: whether this thread's steps are


def has_kernel(optimizer: Any) -> bool:
    """Return whether a Keras optimizer steps with a single kernel in `at_work`."""
    if isinstance(optimizer, keras.optimizers.SGD):
        return bool(optimizer.momentum) and not optimizer.nesterov
    return isinstance(optimizer, keras.optimizers.Adam)


def advice(optimizers: Sequence[Any]) -> str | None:
    """Return a line about an optimizer of many weights that has no fused kernel; `None` if there is none."""
    for optimizer in optimizers:
        own = getattr(optimizer, "inner_optimizer", None) or optimizer  # if it is a `LossScaleOptimizer`
        is_one_operation = isinstance(own, keras.optimizers.SGD) and not own.momentum
        elements = sum(math.prod(weight.shape) for weight in trained_by(own))
        if elements >= FROM and not (has_kernel(own) or is_one_operation):
            return (
                f"PyTorch has no one kernel for the update by {type(own).__name__}, which goes through memory once for "
                "each operation. It has one for Adam, AdamW, and SGD with momentum but without nesterov"
            )
    return None


@contextlib.contextmanager
def at_work() -> Iterator[None]:
    """Fuse steps of Keras's `Adam`, `AdamW` and `SGD` with momentum within this context, on this thread.

    Weight decay, clipping, moving averages and the step count remain Keras's. Steps equal Keras's up to rounding:

        m = beta_1 m + (1 - beta_1) g,  v = beta_2 v + (1 - beta_2) g^2,  w -= alpha m / (sqrt(v) + epsilon)      Adam
        m = momentum m - rate g,  w += m                                                                         SGD
    """
    _install()
    before, _here.fused = getattr(_here, "fused", False), True
    try:
        yield
    finally:
        _here.fused = before


@functools.cache
def _install() -> None:
    for name, step in (("Adam", _adam), ("SGD", _sgd)):
        replace_parallel_step(name, functools.partial(_replaced, step))


def _replaced(step: Callable[..., None], original: Callable[..., None]) -> Callable[..., None]:
    def parallel_update_step(
        optimizer: Any, grads: Sequence[torch.Tensor], variables: Sequence[Variable], learning_rate: Any
    ) -> None:
        fused, rest = [], [*zip(grads, variables, strict=True)]
        if getattr(_here, "fused", False) and has_kernel(optimizer) and _are_plain(grads, variables):
            # Kernels reject empty tensors, and go through memory in one order: that of the gradient and the slots.
            fused = [(grad.contiguous(), variable) for grad, variable in rest if _is_in_order(grad, variable)]
            rest = [(grad, variable) for grad, variable in rest if grad.numel() and not _is_in_order(grad, variable)]
        for function, pairs in ((step, fused), (original, rest)):
            if pairs:
                own = [grad for grad, _ in pairs], [variable for _, variable in pairs]
                function(optimizer, *own, learning_rate)

    return parallel_update_step


def _is_in_order(grad: torch.Tensor, variable: Variable) -> bool:
    """Return whether a weight is not empty and lies in memory row by row, unlike a transposed initial value."""
    return bool(grad.numel()) and native_of(variable).is_contiguous()


def _are_plain(grads: Sequence[torch.Tensor], variables: Sequence[Variable]) -> bool:
    """Return whether all tensors have one device and one type for which the kernel rounds as Keras's operations do."""
    kinds = {(tensor.dtype, tensor.device) for tensor in (*grads, *map(native_of, variables))}
    dtype, device = next(iter(kinds))
    return len(kinds) == 1 and dtype in (torch.float32, torch.float64) and device.type in ("cpu", "cuda")


@functools.cache
def _steps_done(device: torch.device) -> torch.Tensor:
    return torch.tensor(_STEPS_DONE, device=device)


def _adam(optimizer: Any, grads: Sequence[torch.Tensor], variables: Sequence[Variable], learning_rate: Any) -> None:
    weights = [native_of(variable) for variable in variables]
    one, step = (
        torch.ones((), dtype=weights[0].dtype, device=weights[0].device),
        keras.ops.cast(optimizer.iterations + 1, weights[0].dtype),
    )
    powers = [keras.ops.power(one * beta, step) for beta in (optimizer.beta_1, optimizer.beta_2)]
    rate = keras.ops.cast(learning_rate, weights[0].dtype)  # in Keras's type and order of operations
    alpha = rate * torch.sqrt(1 - powers[1]) / (1 - powers[0])
    adam(
        weights,
        list(grads),
        slots_of(optimizer, "_momentums", variables),
        slots_of(optimizer, "_velocities", variables),
        slots_of(optimizer, "_velocity_hats", variables) if optimizer.amsgrad else [],
        [_steps_done(weights[0].device)] * len(weights),
        fused=True,
        amsgrad=optimizer.amsgrad,
        beta1=optimizer.beta_1,
        beta2=optimizer.beta_2,
        lr=alpha if alpha.is_cuda else float(alpha),  # `float` would wait for the GPU
        weight_decay=0.0,
        eps=optimizer.epsilon,
        maximize=False,
    )


def _sgd(optimizer: Any, grads: Sequence[torch.Tensor], variables: Sequence[Variable], learning_rate: Any) -> None:
    rate = float(learning_rate)
    sgd(
        [native_of(variable) for variable in variables],
        list(grads),
        slots_of(optimizer, "momentums", variables),
        fused=True,
        weight_decay=0.0,
        momentum=optimizer.momentum,
        lr=-1.0,  # Keras's momentum contains the rate
        dampening=1.0 + rate,
        nesterov=False,
        maximize=False,
    )
