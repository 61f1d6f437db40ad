"""A layer whose weights are divided over the ranks of a group, which share a batch."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from easyscale.backend import value_of
from easyscale.backend.base import Backend
from easyscale.communicator import Communicator
from easyscale.layout.sliced import bounds_of
from easyscale.parallel.split.kinds import Kind
from easyscale.parallel.split.pair import Pair
from easyscale.parallel.split.sliced_variable import SlicedVariable
from easyscale.parallel.split.trip import WithinGroup
from easyscale.step.gradients import Gradients
from easyscale.step.python_calls import PythonCalls
from easyscale.step.random_state import mix

__all__ = ["GroupLayer"]


class GroupLayer:
    """Computes a layer from the slices of a group's ranks, each of which has the whole batch.

    Ranks of a group draw the same random numbers, except in this layer, of which each computes only some heads.

    Args:
        kind: `Kind`, of the layer.
        group: The `Communicator` of the group.
        call: The `PythonCalls` of a step.
        backend: The `Backend`.
        is_in_step: Function. Returns whether a step is being traced, outside of any loop or branch in it.
        is_together: Function. Returns whether all ranks of the group are in the same step now.
        pairs: List of `Pair`, some of which may contain the layer. Defaults to none.

    Attributes:
        variables: List of `SlicedVariable`.
    """

    def __init__(
        self,
        kind: Kind,
        group: Communicator,
        call: PythonCalls,
        backend: Backend,
        is_in_step: Callable[[], bool],
        is_together: Callable[[], bool],
        pairs: Sequence[Pair] = (),
    ):
        self._before = next((pair for pair in pairs if pair.second is kind), None)
        self._behind = next((pair for pair in pairs if pair.first is kind), None)
        self._kind, self._group, self._python = kind, group, call
        self._is_in_step, self._is_together = is_in_step, is_together
        self.variables = [
            SlicedVariable(variable, axis, variable.shape[axis] // kind.length, group, backend)
            for variable, axis in kind.slices
        ]
        bounds = bounds_of(kind.length, group.size)
        self._owned = range(bounds[group.rank], bounds[group.rank + 1])
        self._seeds: list[tuple[keras.Variable, int]] = []  # the group's, while this rank uses others

    def add_to(self, gradients: Gradients) -> None:
        """Register the slices with an optimizer."""
        for part in self.variables:
            gradients.groups.add(part.variable, part.sliced)

    def begin(self) -> None:
        """Start computing with slices, which the layer's variables are now."""
        object.__setattr__(self._kind.layer, "call", self._call)
        if self._group.rank == 0 or self._seeds:
            return
        for state in self._kind.layer.variables:
            if state.name == "seed_generator_state":
                seed, count = value_of(state).tolist()
                state.assign([mix(seed, -self._group.rank), count])
                self._seeds.append((state, seed))

    def end(self) -> None:
        """Restore the layer's own computation."""
        vars(self._kind.layer).pop("call", None)
        for state, seed in self._seeds:
            state.assign([seed, value_of(state).tolist()[1]])
        self._seeds = []

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        if not self._is_in_step():
            raise ValueError(
                "a split layer computes in the steps and validations of a `fit()`. Received: a call of "
                f"'{self._kind.layer.name}' beside them, or in a loop or branch of one. Call `model.predict`, wait for "
                "the end of `fit()`, or do not split it"
            )
        trip = self._kind.trip_within(self._group)
        passage = _Passage(self._kind, trip, self._owned, self._python, self._is_together)
        given = args[0] if args else kwargs["inputs"]
        if self._behind is not None:
            return self._behind.keep(passage.compute, given)
        if self._before is not None:
            columns = self._before.take(given)
            return self._kind.call(lambda _: passage.finish([columns]), given)
        return self._kind.call(passage, *args, **kwargs)


class _Passage:
    """One call of the layer in a step.

        forward      rows   --to_owners-->  compute, at the owner  --to_workers-->  results
        backward     g      <-------------  compute's gradient     <-------------   g

    Each rank has the gradient of its worker's whole loss with respect to the results.

    Args:
        kind: `Kind`.
        trip: `WithinGroup`, of this call.
        owned: Range. See `Kind.compute`.
        call: The `PythonCalls` of the step.
        is_together: Function. See `GroupLayer`.
    """

    def __init__(self, kind: Kind, trip: WithinGroup, owned: range, call: PythonCalls, is_together: Callable[[], bool]):
        self._kind, self._trip, self._owned = kind, trip, owned
        self._python, self._is_together = call, is_together
        self._dtype = np.dtype(kind.layer.compute_dtype)

    def __call__(self, tensors: list[Any], form: int = 0) -> Any:
        """Return the results, in the graph; see `Kind.call`."""
        return self._back(self.compute(tensors, form), tensors if self._trip.needs_rows else [])

    def compute(self, tensors: list[Any], form: int = 0) -> Any:
        """Return the output of this rank's slice, in the graph, without communicating it."""
        return self._kind.compute(self._there(tensors), form, self._owned)

    def finish(self, own: list[Any]) -> Any:
        """Return the results, in the graph, from this rank's part of the tensors."""
        return self._back(self._kind.compute(own, 0, self._owned))

    def _there(self, tensors: list[Any]) -> list[Any]:
        count = sum(_spec(tensor)[1].kind == "f" for tensor in tensors)
        if not count:
            return self._to_owner(tensors)
        own = [((None, *shape), dtype) for shape, dtype in map(_spec, tensors[:count])]

        def to_workers(*arrays: np.ndarray) -> list[np.ndarray]:
            return [self._trip.gradients_to_workers(rows) for rows in arrays]

        @keras.ops.custom_gradient
        def there(*floats: Any) -> tuple[Any, Callable]:
            def gradient(*arrived: Any) -> Any:
                return self._python(to_workers, arrived[:count], own)

            return self._to_owner(list(floats)), gradient

        return [*there(*tensors[:count]), *tensors[count:]]  # next to floats, integers are not moved

    def _to_owner(self, tensors: list[Any]) -> list[Any]:
        if not self._trip.moves_rows:
            return tensors
        at_owner = [((None, *map(self._trip.width_at_owner, shape)), dtype) for shape, dtype in map(_spec, tensors)]
        return self._python(lambda *arrays: list(map(self._trip.to_owners, arrays)), tensors, at_owner)

    def _back(self, computed: Any, given: Sequence[Any] = ()) -> Any:
        trip, (*between, width) = self._trip, computed.shape[1:]
        at_owner = (None, *between, width), self._dtype
        own = (None, *between, trip.width_at_worker(width)), self._dtype

        @keras.ops.custom_gradient
        def back(computed: Any) -> tuple[Any, Callable]:
            def gradient(arrived: Any) -> Any:
                if not trip.moves_gradients:
                    return arrived
                to_owners = [arrived, *given]  # `given` of this call: other micro-batches may be alive
                return self._python(lambda *rows: [trip.gradients_to_owners(*rows)], to_owners, [at_owner])[0]

            return self._python(self._to_workers, [computed], [own])[0], gradient

        return back(computed)

    def _to_workers(self, rows: np.ndarray) -> list[np.ndarray]:
        if not self._is_together():
            raise ValueError(
                "a split layer computes in the steps and validations of a `fit()`. Received: a call of "
                f"'{self._kind.layer.name}' in it by one worker alone. Call `model.predict` or `model.evaluate`, or "
                "wait for the end of `fit()`"
            )
        return [self._trip.to_workers(rows)]


def _spec(tensor: Any) -> tuple[tuple[Any, ...], np.dtype]:
    return tuple(tensor.shape[1:]), np.dtype(keras.backend.standardize_dtype(tensor.dtype))
