"""What describes an exchange of gradients: what travels, who gets which part, and how each vector goes."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from easyscale.layout.bucket import Bucket
from easyscale.layout.shards import Shards
from easyscale.layout.specs import Spec
from easyscale.step.interfaces import Gradient

__all__ = ["Owned", "Route", "Signature"]


class Signature(NamedTuple):
    """What is exchanged, the same on all ranks.

    Attributes:
        dense: `Spec` of each dense gradient.
        moving: `Spec` of each moving statistic that travels with them.
        sparse: `Spec` of each variable whose gradient is some of its rows.
        accumulates: Bool. Whether gradients are summed up over several steps before they are exchanged.
        sharded: Bool. Whether each worker gets only the parts that it owns.
        number: Int. The optimizer's.
        variables: For each dense, then for each sparse gradient, then for each slice the number of its variable.
        slices: `Spec` of each whole variable of which each worker has a slice, whose gradient is there already.
    """

    dense: tuple[Spec, ...]
    moving: tuple[Spec, ...]
    sparse: tuple[Spec, ...]
    accumulates: bool
    sharded: bool
    number: int
    variables: tuple
    slices: tuple[Spec, ...] = ()

    @property
    def descriptions(self) -> list[str]:
        """One line of text for each gradient."""
        suffix = f" of optimizer {self.number}" if self.number else ""
        descriptions = [f"{shape} {dtype.name}{suffix}" for shape, dtype in self.dense]
        descriptions += [f"{shape} {dtype.name} moving{suffix}" for shape, dtype in self.moving]
        descriptions += [f"{shape} {dtype.name} in rows{suffix}" for shape, dtype in self.sparse]
        descriptions += [f"{shape} {dtype.name} in slices{suffix}" for shape, dtype in self.slices]
        return descriptions + ["accumulated"] * self.accumulates + ["sharded"] * self.sharded


class Owned(NamedTuple):
    """Which parts of the gradients a worker gets.

    Attributes:
        shards: The `Shards` of the optimizer's variables.
        numbers: For each dense gradient the number of its variable in `shards`.
    """

    shards: Shards
    numbers: list[int]

    def sliced(self, numbers: Sequence[int]) -> set[int]:
        """Return which of some variables, given by their numbers in `shards`, are slices of this rank in its group."""
        return {index for index, number in enumerate(numbers) if number in self.shards.groups}


class Route(NamedTuple):
    """A vector of gradients and how it travels.

    Attributes:
        bucket: The `Bucket` that describes it.
        positions: Dict. From a slot's index to the position of its gradient among those of a step.
        move: Function of the exchange that the vector is given to.
        take: Function. Takes the vector and returns what has come, by slot's index.
        is_moving: Bool. Whether it has moving statistics only: they travel in each step, due or not.
    """

    bucket: Bucket
    positions: dict[int, int]
    move: Callable[[np.ndarray], None]
    take: Callable[[np.ndarray], dict[int, np.ndarray]]
    is_moving: bool

    def select(self, gradients: Sequence[Gradient]) -> list[Gradient]:
        """Return those of a step's gradients that travel in this vector."""
        return [gradients[position] for position in self.positions.values()]

    def pack(self, selected: Sequence[np.ndarray], vector: np.ndarray, share: float) -> None:
        """Write what `select` has returned, times `share`, to `vector`."""
        self.bucket.pack(dict(zip(self.positions, selected, strict=True)), vector, share)
