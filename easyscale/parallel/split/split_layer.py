"""A layer whose weights are divided over ranks."""

from collections.abc import Callable
from typing import Any

import numpy as np

from easyscale.backend.base import Backend, StagePasses
from easyscale.communicator import Communicator
from easyscale.parallel.split.kinds import Kind
from easyscale.parallel.split.passage import Part, Passage
from easyscale.parallel.split.sliced_variable import SlicedVariable
from easyscale.parallel.split.trip import Trip
from easyscale.step.interfaces import StepContext, WholeBatch
from easyscale.step.shared import Shared

__all__ = ["SplitLayer"]


class SplitLayer:
    """Computes what the layer does, with the slices of all ranks.

    A rank without a batch, or behind the end of its data, takes part by `join`: its slice serves the others.

    Args:
        kind: `Kind`, of the layer.
        number: Int. It tells the layer from others, the same on all ranks.
        communicator: The `Communicator`.
        shared: Its `Shared`.
        backend: The `Backend`.
        step: Function. Returns the workers whose step is being traced; `None` beside steps, and in a loop of one.

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
        self.variables = [SlicedVariable(variable, axis, communicator, backend) for variable, axis in kind.slices]
        self._context: StepContext | None = None  # of the step that calls the layer
        self._calls = 0  # of the layer in this step
        self._passes: StagePasses | None = None
        self._trips: dict[int, Trip] = {}  # of the calls that others make, by number
        self._by_rows: dict[int, np.ndarray] = {}  # gradients by the rows of such a call
        self._gradients: list[Any] = []

    # A worker that has a batch

    def begin(self) -> None:
        """Let the layer be split. Its variables are slices."""
        object.__setattr__(self._kind.layer, "call", self._call)

    def end(self) -> None:
        """Let the layer be what it was."""
        vars(self._kind.layer).pop("call", None)
        self._passes, self._context, self._gradients = None, None, []
        self._trips.clear()

    def _call(self, inputs: Any, *_: Any, **__: Any) -> Any:
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
        passage = Passage(self._kind, trip, self._number, self._calls, self._shared)
        self._calls += 1
        return self._kind.result(passage(self._kind.rows(inputs), workers.context.weight), inputs)

    # A worker that has none

    def join(self, call: int, part: Part) -> None:
        """Take part in a call of the layer that other ranks make in a step. All that have no batch do this.

        Args:
            call: Int. The number of the call: see `CallPart`.
            part: `Part`. What they do now.
        """
        if part is Part.FORWARD:
            trip = self._trips[call] = self._kind.trip(self._communicator)
            arrived = trip.to_owners(np.zeros((0, *self._kind.row_shape), self._kind.row_dtype))
            (computed,) = self._own_passes(trip).forward(call, [arrived])
            trip.to_workers(computed)
        elif part is Part.BACKWARD:
            trip, passes = self._trips[call], self._own_passes(self._trips[call])
            nothing = np.zeros((0, self._kind.width), self._kind.layer.compute_dtype)
            for by_rows in passes.backward(call, [trip.gradients_to_owners(nothing)]):
                self._by_rows[call] = by_rows
            self._gradients = []
        else:
            self._trips[call].gradients_to_workers(self._by_rows.pop(call))

    def _own_passes(self, trip: Trip) -> StagePasses:
        if self._passes is None:
            shape, dtype = map(trip.width_at_owner, self._kind.row_shape), np.dtype(self._kind.row_dtype)
            watched = [0] if dtype.kind == "f" else []
            variables = [sliced.variable for sliced in self.variables]
            self._passes = self._backend.stage_passes(
                lambda tensors: [self._kind.compute(tensors[0])], [((None, *shape), dtype)], watched, variables
            )
        return self._passes

    def take(self, index: int) -> Any:
        """Return the gradient of a variable, of those that have come by `join` since the last step."""
        assert self._passes is not None  # others have come to the update by way of this layer
        self._gradients = self._gradients or self._passes.take()
        return self._gradients[index]
