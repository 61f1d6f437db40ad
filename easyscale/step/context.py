"""The context of a step, and the types used in steps."""

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from easyscale.exchange import Exchange
from easyscale.layout.specs import Variable
from easyscale.step.late_gather import LateGather

__all__ = [
    "Accumulation",
    "Apply",
    "ApplyInStep",
    "CurrentStep",
    "ExchangeArgument",
    "Gradient",
    "Model",
    "StepContext",
    "Tensor",
]


class Model(Protocol):
    """A Keras model."""

    name: str

    @property
    def metrics_variables(self) -> Sequence[Variable]: ...


@dataclasses.dataclass(frozen=True)
class StepContext:
    """The batch and settings of one optimizer step.

    Attributes:
        weight: Scalar tensor or number. The weight of this worker's gradients in the mean over workers: the number of
            samples that they were computed from. Defaults to `1.0`.
        data: Vectors. The first elements of each tensor in this step's batch. Defaults to none.
        moving: Variables that each worker changes by itself in every step, such as the moving statistics of batch
            normalization. Each exchange of gradients sets them to their mean over workers. Defaults to none.
        losses: Variables that are finite as long as this worker's losses are. Defaults to none.
        late: `LateGather`. Delivers the new weights during the next step; this step began with its `receive`.
            Defaults to `None`: new weights are delivered at the end of this step.
        adjust: Function. Takes the mean gradients, and a function that returns the sum of squares of each whole
            gradient; returns the gradients to apply instead. Pipeline stages use it to clip by the norm over all
            stages. Defaults to `None`.
        came: Scalar tensor or number. The time at which the batch was ready; see `Timeline.came`. Defaults to `None`:
            it is not recorded.
        as_made: Bool. Whether the optimizer receives gradients exactly as the backward pass makes them, unchanged by
            the step. Defaults to `False`.
    """

    weight: Any = 1.0
    data: Sequence[Any] = ()
    moving: Sequence[Variable] = ()
    losses: Sequence[Variable] = ()
    late: LateGather | None = None
    adjust: Callable[[list, Callable[[list], Any]], list] | None = None
    came: Any = None
    as_made: bool = False


Tensor: TypeAlias = Any  # a tensor of the backend

ExchangeArgument: TypeAlias = str | Exchange | type[Exchange] | None  # a user's `exchange` argument

Gradient: TypeAlias = Any  # a tensor, a sparse gradient, or `None` for a variable without one

Apply: TypeAlias = Callable[[list, list], None]  # updates variables (second argument) by gradients (first)

ApplyInStep: TypeAlias = Callable[[StepContext, list, list], None]  # the same, after averaging over workers


class CurrentStep(threading.local):
    """The current step of one optimizer in this thread: each replica of a process is traced in a separate thread.

    Args:
        weight: Float. The weight of gradients outside of a step of `fit()`, as in a custom loop: that of a single
            sample, or 0 on a server, which runs the same loop. Defaults to `1.0`.

    Attributes:
        context: `StepContext`. The context of the step.
    """

    def __init__(self, weight: float = 1.0):
        self.context = StepContext(weight)

    @contextlib.contextmanager
    def of(self, context: StepContext) -> Iterator[None]:
        """Set the context of the step for the duration of a `with` block."""
        before, self.context = self.context, context
        try:
            yield
        finally:
            self.context = before


class Accumulation(NamedTuple):
    """Gradients that are accumulated over several steps before they are exchanged.

    Attributes:
        due: Scalar bool tensor. Whether this step is the last of them.
        gradients: List of variables. The sum so far for each trainable variable. All are reset to zero when gradients
            are exchanged.
        may_overflow: Bool. Whether a gradient that is not finite makes all workers skip the step.
        scale: Scalar tensor or number. The scale of this step's gradients relative to the accumulated ones.
    """

    due: Any
    gradients: list
    may_overflow: bool
    scale: Any = 1.0
