"""Variables that are a worker's slices of divided ones, and the gradients that come to it for them. No TensorFlow."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from easyscale.layout.sliced import Sliced
from easyscale.layout.specs import Variable
from easyscale.step.group_slices import GroupSlices
from easyscale.step.interfaces import Gradient

__all__ = ["OwnedSlices"]


class OwnedSlice(NamedTuple):
    """A variable, with what `OwnedSlices.add` takes."""

    variable: Variable
    sliced: Sliced
    take: Callable[[], Gradient]


class OwnedSlices:
    """The slices of this worker: nothing of them is reduced, or gathered.

    Their gradients are those of all workers' samples already, weighted as their mean is.

    Attributes:
        groups: The `GroupSlices`, slices of the ranks of a worker, which are not among these.
    """

    def __init__(self) -> None:
        self.groups = GroupSlices()
        self._owned: dict[int, OwnedSlice] = {}  # by identity

    def add(self, variable: Variable, sliced: Sliced, take: Callable[[], Gradient]) -> None:
        """Let a variable be a slice from now on.

        Args:
            variable: The variable, which has the shape of the slice.
            sliced: `Sliced`. Of what it is a slice.
            take: Function. Returns the gradient that has come to this worker while it had no batch of its own.
        """
        self._owned[id(variable)] = OwnedSlice(variable, sliced, take)

    def clear(self) -> None:
        """Let all variables be whole again."""
        self._owned.clear()

    def __contains__(self, variable: Variable) -> bool:
        return id(variable) in self._owned

    def sliced(self, variable: Variable) -> Sliced:
        """Return of what a variable is a slice."""
        return self._owned[id(variable)].sliced

    def of(self, variables: Sequence[Variable]) -> list[Sliced | None]:
        """Return of what each variable is a slice; `None` for one that is whole."""
        return [self.sliced(variable) if variable in self else None for variable in variables]

    def numbered(self, variables: Sequence[Variable]) -> dict[int, Sliced]:
        """Return of what variables are slices, by their numbers, without those that are whole."""
        return {number: sliced for number, sliced in enumerate(self.of(variables)) if sliced is not None}

    def take(self, variable: Variable) -> Gradient:
        """Return the gradient of a slice on a worker that has made no backward pass."""
        return self._owned[id(variable)].take()
