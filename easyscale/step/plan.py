"""The plan of a step's exchange: which arrays travel, in which vectors, and the hash on which all ranks agree.

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
    """How an array takes part in a step; the value describes it in error messages."""

    DENSE = ""  # a gradient that travels in a vector
    MOVING = " moving"  # a moving statistic, which travels in a vector as well
    ROWS = " in rows"  # a gradient that is some rows of a matrix
    SLICE = " in slices"  # a gradient of this rank's slice of a variable: each worker has it already


@dataclasses.dataclass(frozen=True)
class Entry:
    """An array that a step exchanges.

    Attributes:
        kind: `Kind`.
        spec: `Spec` of the whole array, the same on all ranks.
        variable: Int. The number of the gradient's variable, the same on all ranks; of a moving statistic its position.
        position: Int. Where it is among the gradients of the step, or among its moving statistics. Another step of the
            same entries may have it elsewhere.
    """

    kind: Kind
    spec: Spec
    variable: int
    position: int = dataclasses.field(compare=False)


@dataclasses.dataclass(frozen=True)
class Plan:
    """What the ranks exchange in a step, the same on all of them.

    Attributes:
        entries: Tuple of `Entry`: dense gradients, moving statistics, gradients in rows, then those of slices.
        accumulates: Bool. Whether gradients are summed up over several steps before they are exchanged.
        sharded: Bool. Whether each worker receives only the parts of gradients that it owns.
        optimizer: Int. The number of the optimizer.
    """

    entries: tuple[Entry, ...]
    accumulates: bool
    sharded: bool
    optimizer: int

    def of(self, *kinds: Kind) -> list[Entry]:
        """Return the entries of these kinds, in their order."""
        return [entry for entry in self.entries if entry.kind in kinds]

    @functools.cached_property
    def gradients(self) -> list[Entry]:
        """The entries of gradients."""
        return self.of(Kind.DENSE, Kind.ROWS, Kind.SLICE)

    @functools.cached_property
    def summed(self) -> list[Entry]:
        """The entries that travel in vectors."""
        return self.of(Kind.DENSE, Kind.MOVING)

    @functools.cached_property
    def descriptions(self) -> list[str]:
        """One line of text for each entry, and what holds for all of them."""
        suffix = f" of optimizer {self.optimizer}" if self.optimizer else ""
        lines = [f"{one.spec.shape} {one.spec.dtype.name}{one.kind.value}{suffix}" for one in self.entries]
        return lines + ["accumulated"] * self.accumulates + ["sharded"] * self.sharded

    @functools.cached_property
    def hash(self) -> int:
        """64 bits by which ranks compare their plans."""
        return signature([*self.descriptions, str(tuple(entry.variable for entry in self.gradients))])


@dataclasses.dataclass(frozen=True)
class Vector:
    """A flat vector of a step, and how it travels.

    Attributes:
        bucket: The `Bucket` that lays it out.
        entries: Dict. From a slot's index to the index of its entry in `Plan.summed`.
        move: Function. Sums the vector over ranks, in place.
        take: Function of the summed vector. Returns the arrays in it, by slot's index.
        is_moving: Bool. Whether it holds moving statistics only, which also travel where gradients are not due.
    """

    bucket: Bucket
    entries: dict[int, int]
    move: Callable[[np.ndarray], None]
    take: Callable[[np.ndarray], dict[int, np.ndarray]]
    is_moving: bool

    def select(self, summed: Sequence) -> list:
        """Return those of a step's summed arrays that travel in this vector."""
        return [summed[index] for index in self.entries.values()]

    def pack(self, selected: Sequence[np.ndarray], vector: np.ndarray, share: float) -> None:
        """Write the arrays that `select` has returned, times `share`, to `vector`."""
        self.bucket.pack(dict(zip(self.entries, selected, strict=True)), vector, share)


class StepArrays(NamedTuple):
    """A step's input: tensors in the graph, arrays in its call of Python.

    Attributes:
        weight: Scalar. The number of samples in this worker's gradients.
        losses: Scalars that are finite as long as this worker's losses are.
        data: Vectors with which this worker's batch begins.
        came: List of the time at which the batch came, or empty: it is not recorded.
        due: Scalar bool. Whether gradients are exchanged in this step, or only accumulated.
        summed: An array for each entry of `Plan.summed`.
        accumulated: The sums so far of the dense gradients, if the plan accumulates.
        values, indices: The rows of each gradient in rows, and their numbers.
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
        summed: An array for each entry of `Plan.summed`: of gradients this worker's parts, if the plan is sharded.
        values, indices: The rows of each gradient in rows, and their numbers.
        exchanged: Scalar bool. Whether gradients were exchanged.
    """

    summed: Sequence[Any]
    values: Sequence[Any]
    indices: Sequence[Any]
    exchanged: Any


def flat(arrays: NamedTuple) -> list:
    """Return the arrays of a named tuple, of which each field is an array or a sequence of them, in one list."""
    return [one for field in arrays for one in (field if isinstance(field, (list, tuple)) else [field])]


def like(pattern: Any, values: Sequence) -> Any:
    """Return a named tuple of the pattern's type whose arrays are `values`: the inverse of `flat`."""
    left = iter(values)
    fields = ([next(left) for _ in field] if isinstance(field, (list, tuple)) else next(left) for field in pattern)
    return type(pattern)(*fields)
