"""The context of a step, and the types of what it passes on."""

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
    """A model of Keras."""

    name: str

    @property
    def metrics_variables(self) -> Sequence[Variable]: ...


@dataclasses.dataclass(frozen=True)
class StepContext:
    """What an optimizer's step knows of its batch.

    Attributes:
        weight: Scalar tensor or number. The weight of this worker's gradients in the mean over workers: the number of
            samples that they were made from. Defaults to `1.0`.
        data: Vectors: how the tensors of this step's batch begin. Defaults to none.
        moving: Variables that each worker moves by itself in every step, such as the moving statistics of batch
            normalization. With every exchange of gradients they become their mean over workers. Defaults to none.
        losses: Variables that are finite as long as the losses of this worker are. Defaults to none.
        late: `LateGather`. By which the new weights come in the next step; this one has begun with its `receive`.
            Defaults to `None`: they come at the end of this step.
        adjust: Function. Takes the means of gradients that the update is made by, and a function that returns the sum
            of squares of each as a whole; returns those that it is made by instead. So stages of a pipeline clip by the
            norm over all of them. Defaults to `None`.
        came: Scalar tensor or number. When the batch has come; see `Timeline.came`. Defaults to `None`: it is not
            recorded.
        as_made: Bool. Whether gradients come to the optimizer as the backward pass makes them: nothing in the step
            changes them before. Defaults to `False`.
    """

    weight: Any = 1.0
    data: Sequence[Any] = ()
    moving: Sequence[Variable] = ()
    losses: Sequence[Variable] = ()
    late: LateGather | None = None
    adjust: Callable[[list, Callable[[list], Any]], list] | None = None
    came: Any = None
    as_made: bool = False


Tensor: TypeAlias = Any  # of the backend

ExchangeArgument: TypeAlias = str | Exchange | type[Exchange] | None  # what a user gives as `exchange`

Gradient: TypeAlias = Any  # a tensor, some rows of one, or `None` for a variable that has none

Apply: TypeAlias = Callable[[list, list], None]  # changes variables, its second argument, by gradients, its first

ApplyInStep: TypeAlias = Callable[[StepContext, list, list], None]  # the same, after their mean over workers


class CurrentStep(threading.local):
    """The step of one optimizer, in this thread: each replica of a process traces its own in a thread of its own.

    Args:
        weight: Float. The weight of gradients outside of a step of `fit()`, as in a loop of the user's own: that of a
            single sample, or 0 on a server, which runs the same loop. Defaults to `1.0`.

    Attributes:
        context: `StepContext`. What is known of the step.
    """

    def __init__(self, weight: float = 1.0):
        self.context = StepContext(weight)

    @contextlib.contextmanager
    def of(self, context: StepContext) -> Iterator[None]:
        """Inside, the step is the one of which this is known."""
        before, self.context = self.context, context
        try:
            yield
        finally:
            self.context = before


class Accumulation(NamedTuple):
    """Gradients that are summed up over several steps before they are exchanged.

    Attributes:
        due: Scalar bool tensor. Whether this step is the last of them.
        gradients: List of variables. For each trainable variable what has been summed up so far. All become zero
            where gradients are exchanged.
        may_overflow: Bool. Whether a gradient that is not finite makes all workers skip the step.
        scale: Scalar tensor or number. How many times as large gradients are as those that have been summed up.
    """

    due: Any
    gradients: list
    may_overflow: bool
    scale: Any = 1.0
