"""A layer whose weights are divided over workers."""

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from easyscale.backend.base import Backend, StagePasses
from easyscale.communicator import Communicator
from easyscale.layout.sliced import bounds_of
from easyscale.parallel.split.kinds import Kind
from easyscale.parallel.split.passage import CallPart, Part, Passage
from easyscale.parallel.split.sliced_variable import SlicedVariable
from easyscale.parallel.split.trip import Trip
from easyscale.step.context import StepContext
from easyscale.step.gradients import Gradients
from easyscale.step.shared import Shared
from easyscale.step.whole_batch import WholeBatch

__all__ = ["SplitLayer"]


class SplitLayer:
    """Computes a layer from the slices of all ranks.

    A rank without a batch, such as one at the end of its data, takes part by `join`: its slice serves the others.

    Args:
        kind: `Kind`, of the layer.
        number: Int. Identifies the layer, the same on all ranks.
        communicator: The `Communicator`.
        shared: Its `Shared`.
        backend: The `Backend`.
        step: Function. Returns the workers whose step is being traced; `None` outside of steps, and in a loop or branch
            of one.

    Attributes:
        variables: List of `SlicedVariable`.
    """

    def __init__(
        self,
        kind: Kind,
        number: int,
        communicator: Communicator,
        shared: Shared,
        backend: Backend,
        step: Callable[[], WholeBatch | None],
    ):
        self._kind, self._number, self._communicator = kind, number, communicator
        self._shared, self._backend, self._step = shared, backend, step
        self.variables = [
            SlicedVariable(variable, axis, variable.shape[axis] // kind.length, communicator, backend)
            for variable, axis in kind.slices
        ]
        bounds = bounds_of(kind.length, communicator.size)
        self._owned = range(bounds[communicator.rank], bounds[communicator.rank + 1])
        self._context: StepContext | None = None  # of the step that calls the layer
        self._calls = 0  # of the layer in this step
        self._passes: dict[int, StagePasses] = {}  # for calls by other ranks, by form
        self._joined: dict[int, _Joined] = {}  # calls by other ranks, by number
        self._gradients: list[Any] = []

    def add_to(self, gradients: Gradients) -> None:
        """Register the slices with an optimizer."""
        for index, part in enumerate(self.variables):
            gradients.slices.add(part.variable, part.sliced, functools.partial(self.take, index))

    # A worker with a batch

    def begin(self) -> None:
        """Start computing with slices, which the layer's variables are now."""
        object.__setattr__(self._kind.layer, "call", self._call)

    def end(self) -> None:
        """Restore the layer's own computation."""
        vars(self._kind.layer).pop("call", None)
        self._context, self._gradients = None, []
        self._passes.clear()
        self._joined.clear()

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        workers = self._step()
        if workers is None:
            raise ValueError(
                "a split layer computes in the steps and validations of a `fit()`. Received: a call of "
                f"'{self._kind.layer.name}' beside them, or in a loop or branch of one. Call `model.predict`, wait for "
                "the end of `fit()`, or do not split it"
            )
        if workers.context is not self._context:
            self._context, self._calls = workers.context, 0
        trip = self._kind.trip(self._communicator)
        passage = Passage(self._kind, trip, self._number, self._calls, self._owned, self._shared)
        self._calls += 1
        return self._kind.call(functools.partial(passage, workers.context.weight), *args, **kwargs)

    # A worker without a batch

    def join(self, call_part: CallPart) -> None:
        """Take part in a call of the layer by other ranks in a step. All ranks without a batch do this.

        Args:
            call_part: `CallPart`. The current part.
        """
        call, part = call_part.call, call_part.part
        if part is Part.FORWARD:
            self._joined[call] = self._join_forward(call, call_part.form)
        elif part is Part.BACKWARD:
            joined = self._joined[call]
            by_result = joined.trip.gradients_to_owners(joined.result)
            self._joined[call] = joined._replace(by_rows=self._passes[joined.form].backward(call, [by_result]))
            self._gradients = []
        else:
            joined = self._joined.pop(call)
            for by_rows in joined.by_rows:
                joined.trip.gradients_to_workers(by_rows)

    def _join_forward(self, call: int, form: int) -> "_Joined":
        trip, specs = self._kind.trip(self._communicator), self._kind.rows(form)
        nothing = [np.zeros((0, *(axis or 0 for axis in shape)), dtype) for shape, dtype in specs]
        arrived = trip.give(nothing)
        if form not in self._passes:
            self._passes[form] = self._make_passes(trip, form)
        (computed,) = self._passes[form].forward(call, arrived)
        return _Joined(trip, form, trip.to_workers(computed))

    def _make_passes(self, trip: Trip, form: int) -> StagePasses:
        specs = [
            ((None, *(None if axis is None else trip.width_at_owner(axis) for axis in shape)), np.dtype(dtype))
            for shape, dtype in self._kind.rows(form)
        ]
        watched = [index for index, (_, dtype) in enumerate(specs) if dtype.kind == "f"]
        variables = [sliced.variable for sliced in self.variables]
        return self._backend.stage_passes(
            lambda tensors: [self._kind.compute(tensors, form, self._owned)], specs, watched, variables
        )

    def take(self, index: int) -> Any:
        """Return a variable's gradient, summed over the calls joined since the last step."""
        assert self._passes  # others have called this layer before the update
        if not self._gradients:
            of_forms = [passes.take() for passes in self._passes.values()]
            self._gradients = [functools.reduce(operator.add, of_form) for of_form in zip(*of_forms, strict=True)]
        return self._gradients[index]


class _Joined(NamedTuple):
    """A call by other ranks.

    Attributes:
        trip: Its `Trip`.
        form: Int. Its form.
        result: Array without rows. The result for this worker.
        by_rows: List of arrays. The gradients of the rows that this owner received.
    """

    trip: Trip
    form: int
    result: np.ndarray
    by_rows: Sequence[np.ndarray] = ()
