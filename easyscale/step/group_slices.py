"""Variables that are slices of divided ones, of which each worker has all, one on each of its ranks. No TensorFlow."""

from collections.abc import Sequence

from easyscale.layout.sliced import Sliced
from easyscale.layout.specs import Variable

__all__ = ["GroupSlices"]


class GroupSlices:
    """The slices of this rank, where a worker is a group of ranks: to other workers they are weights as any other.

    Their gradients are reduced, and they are gathered, between the ranks that have the same slice. Only norms and whole
    states need the other ranks of the group.
    """

    def __init__(self) -> None:
        self._sliced: dict[int, tuple[Variable, Sliced]] = {}  # by identity

    def add(self, variable: Variable, sliced: Sliced) -> None:
        """Let a variable be a slice from now on.

        Args:
            variable: The variable, which has the shape of the slice.
            sliced: `Sliced`, over the ranks of the group. Of what it is a slice.
        """
        self._sliced[id(variable)] = variable, sliced

    def clear(self) -> None:
        """Let all variables be whole again."""
        self._sliced.clear()

    def __len__(self) -> int:
        return len(self._sliced)

    def __contains__(self, variable: Variable) -> bool:
        return id(variable) in self._sliced

    def of(self, variables: Sequence[Variable]) -> list[Sliced | None]:
        """Return of what each variable is a slice; `None` for one that is whole."""
        return [self._sliced[id(variable)][1] if variable in self else None for variable in variables]

    def numbered(self, variables: Sequence[Variable]) -> dict[int, Sliced]:
        """Return of what variables are slices, by their numbers, without those that are whole."""
        return {number: sliced for number, sliced in enumerate(self.of(variables)) if sliced is not None}
