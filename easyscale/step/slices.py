"""The variables of a model that are slices of larger ones."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from easyscale.layout.sliced import Sliced
from easyscale.layout.specs import Variable
from easyscale.step.context import Gradient

__all__ = ["Slices"]


class Slice(NamedTuple):
    """A variable, with the arguments of `Slices.add`."""

    variable: Variable
    sliced: Sliced
    take: Callable[[], Gradient] | None


class Slices:
    """Variables of which each rank has a slice, by identity.

    Slices over workers are neither reduced nor gathered: their gradients already cover all workers' samples, weighted
    as in the mean. Slices over the ranks of a group, which form one worker, are reduced and gathered between the ranks
    with the same slice; only norms and whole states involve the other ranks of the group.
    """

    def __init__(self) -> None:
        self._slices: dict[int, Slice] = {}

    def add(self, variable: Variable, sliced: Sliced, take: Callable[[], Gradient] | None = None) -> None:
        """Register a variable as a slice.

        Args:
            variable: The variable, which has the shape of the slice.
            sliced: `Sliced`. The whole that it is a slice of.
            take: Function. Returns the gradient that this worker has received while it had no batch. Defaults to
                `None`, for a slice over the ranks of a group.
        """
        self._slices[id(variable)] = Slice(variable, sliced, take)

    def clear(self) -> None:
        """Treat all variables as whole again."""
        self._slices.clear()

    def __len__(self) -> int:
        return len(self._slices)

    def __contains__(self, variable: Variable) -> bool:
        return id(variable) in self._slices

    def sliced(self, variable: Variable) -> Sliced:
        """Return the whole that a variable is a slice of."""
        return self._slices[id(variable)].sliced

    def of(self, variables: Sequence[Variable]) -> list[Sliced | None]:
        """Return the whole that each variable is a slice of; `None` for one that is whole."""
        return [self.sliced(variable) if variable in self else None for variable in variables]

    def numbered(self, variables: Sequence[Variable]) -> dict[int, Sliced]:
        """Return the wholes of those variables that are slices, by the variables' numbers."""
        return {number: sliced for number, sliced in enumerate(self.of(variables)) if sliced is not None}

    def take(self, variable: Variable) -> Gradient:
        """Return the gradient of a slice on a worker that has run no backward pass."""
        take = self._slices[id(variable)].take
        return None if take is None else take()
