"""The plan of a step's exchange: its arrays, the vectors that carry them, and a hash that ranks compare.

Made when a step is first traced. NumPy only.
"""

import dataclasses
import enum
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from easyscale.layout.bucket import Bucket
from easyscale.layout.specs import Spec
from easyscale.step.agreement import signature

__all__ = ["Entry", "Kind", "Plan", "Reduced", "StepArrays", "Vector", "flat", "like"]


class Kind(enum.Enum):
    """The role of an array in a step. The value describes it in error messages."""

    DENSE = ""  # a gradient that is sent in a vector
    MOVING = " moving"  # a moving statistic, also sent in a vector
    ROWS = " in rows"  # a sparse gradient: some rows of a matrix
    SLICE = " in slices"  # a gradient of this rank's slice of a variable, complete without an exchange


@dataclasses.dataclass(frozen=True)
class Entry:
    """An array that a step exchanges.

    Attributes:
        kind: `Kind`.
        spec: `Spec` of the whole array, the same on all ranks.
        variable: Int. The number of the gradient's variable, the same on all ranks; for a moving statistic, its
            position.
        position: Int. The index among the step's gradients, or among its moving statistics. It may differ in another
            step with the same entries.
    """

    kind: Kind
    spec: Spec
    variable: int
    position: int = dataclasses.field(compare=False)


@dataclasses.dataclass(frozen=True)
class Plan:
    """The arrays that ranks exchange in a step, the same on all ranks.

    Attributes:
        entries: Tuple of `Entry`: dense gradients, moving statistics, sparse gradients, then gradients of slices.
        accumulates: Bool. Whether gradients are accumulated over several steps before they are exchanged.
        sharded: Bool. Whether each worker receives only the parts of gradients that it owns.
        optimizer: Int. The number of the optimizer.
    """

    entries: tuple[Entry, ...]
    accumulates: bool
    sharded: bool
    optimizer: int

    def of(self, *kinds: Kind) -> list[Entry]:
        """Return the entries of these kinds, in order."""
        return [entry for entry in self.entries if entry.kind in kinds]

    @functools.cached_property
    def gradients(self) -> list[Entry]:
        """The entries of gradients."""
        return self.of(Kind.DENSE, Kind.ROWS, Kind.SLICE)

    @functools.cached_property
    def summed(self) -> list[Entry]:
        """The entries that are sent in vectors."""
        return self.of(Kind.DENSE, Kind.MOVING)

    @functools.cached_property
    def descriptions(self) -> list[str]:
        """One line of text for each entry, then one for each property of the whole plan."""
        suffix = f" of optimizer {self.optimizer}" if self.optimizer else ""
        lines = [f"{one.spec.shape} {one.spec.dtype.name}{one.kind.value}{suffix}" for one in self.entries]
        return lines + ["accumulated"] * self.accumulates + ["sharded"] * self.sharded

    @functools.cached_property
    def hash(self) -> int:
        """A 64-bit hash by which ranks compare their plans."""
        return signature([*self.descriptions, str(tuple(entry.variable for entry in self.gradients))])


@dataclasses.dataclass(frozen=True)
class Vector:
    """A flat vector of a step, with its layout and its reduction.

    Attributes:
        bucket: The `Bucket` that lays it out.
        entries: Dict. Maps a slot's index to the index of its entry in `Plan.summed`.
        move: Function. Sums the vector over ranks, in place.
        take: Function. Takes the summed vector; returns its arrays, by slot index.
        is_moving: Bool. Whether it holds only moving statistics, which are exchanged even if gradients are not due.
    """

    bucket: Bucket
    entries: dict[int, int]
    move: Callable[[np.ndarray], None]
    take: Callable[[np.ndarray], dict[int, np.ndarray]]
    is_moving: bool

    def select(self, summed: Sequence) -> list:
        """Return those of a step's summed arrays that this vector carries."""
        return [summed[index] for index in self.entries.values()]

    def pack(self, selected: Sequence[np.ndarray], vector: np.ndarray, share: float) -> None:
        """Write the arrays that `select` returned, times `share`, to `vector`."""
        self.bucket.pack(dict(zip(self.entries, selected, strict=True)), vector, share)


class StepArrays(NamedTuple):
    """The inputs of a step's exchange: tensors in the graph, arrays in its Python call.

    Attributes:
        weight: Scalar. The number of samples in this worker's gradients.
        losses: Scalars that are finite as long as this worker's losses are.
        data: Vectors. The first elements of each tensor in this worker's batch.
        came: List with the time at which the batch was ready; empty if it is not recorded.
        due: Scalar bool. Whether gradients are exchanged in this step, or only accumulated.
        summed: An array for each entry of `Plan.summed`.
        accumulated: The sums so far of the dense gradients, if the plan accumulates.
        values, indices: The rows of each sparse gradient, and their row numbers.
    """

    weight: Any
    losses: Sequence[Any] = ()
    data: Sequence[Any] = ()
    came: Sequence[Any] = ()
    due: Any = True
    summed: Sequence[Any] = ()
    accumulated: Sequence[Any] = ()
    values: Sequence[Any] = ()
    indices: Sequence[Any] = ()


class Reduced(NamedTuple):
    """A step's means over all workers.

    Attributes:
        summed: An array for each entry of `Plan.summed`. If the plan is sharded, this worker's parts of gradients.
        values, indices: The rows of each sparse gradient, and their row numbers.
        exchanged: Scalar bool. Whether gradients were exchanged.
    """

    summed: Sequence[Any]
    values: Sequence[Any]
    indices: Sequence[Any]
    exchanged: Any


def flat(arrays: NamedTuple) -> list:
    """Flatten a named tuple, whose fields are arrays or sequences of arrays, into one list."""
    return [one for field in arrays for one in (field if isinstance(field, (list, tuple)) else [field])]


def like(pattern: Any, values: Sequence) -> Any:
    """Return a named tuple like `pattern` whose arrays are `values`: the inverse of `flat`."""
    left = iter(values)
    fields = ([next(left) for _ in field] if isinstance(field, (list, tuple)) else next(left) for field in pattern)
    return type(pattern)(*fields)
