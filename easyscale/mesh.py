"""Ranks in a grid with named axes, each of which has a separate communicator.

Messages along different axes never interfere. Gradients travel along `"data"`, between ranks that have the same
weights; activations along `"model"`, between ranks that have different ones.
"""

import math
from collections.abc import Mapping

import numpy as np

from easyscale.communicator import Communicator
from easyscale.communicator.data_axis import DataAxis
from easyscale.communicator.group import Group
from easyscale.errors import unknown

__all__ = ["Mesh", "ranks_of_worker", "set_ranks_of_worker"]

_ranks_of_worker = 1  # neighbouring ranks that train one copy of the model, as last set by the script


def ranks_of_worker() -> int:
    """Return the number of neighbouring ranks that form one worker, a pipeline or a group with one batch; usually 1."""
    return _ranks_of_worker


def set_ranks_of_worker(count: int) -> None:
    """Set the number of neighbouring ranks that `easyscale.size()`, `shard` and `local_batch` count as one worker."""
    global _ranks_of_worker
    _ranks_of_worker = count


class Mesh:
    """The ranks of a communicator in a row-major grid: ranks along the last axis are neighbours.

            model 0   model 1
        data 0   0 ------- 1        mesh["model"] of rank 2: ranks 2 and 3
                 |         |        mesh["data"] of rank 2: ranks 0 and 2
        data 1   2 ------- 3

    Args:
        communicator: The `Communicator`. All its ranks must create the same mesh together.
        axes: Dict. The number of ranks along each axis, by name.

    Attributes:
        communicator: The same.
        axes: The same.

    Raises:
        ValueError: If the sizes of the axes do not multiply to the number of ranks.

    Example:

    >>> mesh = Mesh(easyscale.communicator.get("local"), {"data": 1, "model": 1})
    >>> mesh["data"].size
    1
    """

    def __init__(self, communicator: Communicator, axes: Mapping[str, int]):
        self.communicator, self.axes = communicator, dict(axes)
        sizes = list(self.axes.values())
        if not sizes or any(isinstance(size, bool) or not isinstance(size, int) or size < 1 for size in sizes):
            raise ValueError(f"each axis of a mesh must have a positive number of ranks. Received: axes={self.axes}")
        if communicator.servers:
            raise ValueError(
                f"a mesh must be of ranks that all train. Received: {communicator.servers} servers. Start the job "
                "without `--servers`"
            )
        if communicator.membership.is_elastic:
            raise ValueError("a mesh needs all of its ranks. Received: an elastic job. Start it without `--elastic`")
        if math.prod(sizes) != communicator.size:
            raise ValueError(
                f"the axes of a mesh must multiply to the number of ranks. Received: {_shown(self.axes)}, which is "
                f"{math.prod(sizes)}, for {communicator.size} ranks. {_remedy(self.axes, communicator.size)}"
            )
        self._grid = np.arange(communicator.size).reshape(sizes)
        at = np.argwhere(self._grid == communicator.rank)[0].tolist()
        self._coordinates = dict(zip(self.axes, at, strict=True))
        self._workers: DataAxis | None = None
        self._groups: dict[str, Group] = {}
        self._beside: dict[str, Group] = {}
        self._ranks: dict[str, list[int]] = {}
        for name in self.axes:
            self._ranks[name] = self._ranks_along(name)
            self._groups[name] = Group(communicator.duplicate(), self._ranks[name])

    def __getitem__(self, axis: str) -> Communicator:
        """Return the communicator of the ranks along an axis: this one, and those that differ from it only there."""
        if axis not in self._groups:
            raise ValueError(unknown("axis", axis, list(self._groups)))
        return self._groups[axis]

    def beside(self, axis: str) -> Communicator:
        """Return a second communicator of an axis, for a background thread: its messages never mix with the first's.

        The first call for an axis is collective: all ranks must make it.
        """
        if axis not in self._beside:
            self._beside[axis] = Group(self.communicator.duplicate(), self._ranks[axis])
        return self._beside[axis]

    def workers(self) -> DataAxis:
        """Return the workers along the first axis, each a group of ranks along the last one.

        With axes in between, only ranks with this rank's coordinates there are included. The first call is collective:
        all ranks must make it.
        """
        if self._workers is None:
            first, last = list(self.axes)[0], list(self.axes)[-1]
            everyone, ranks = self.communicator.duplicate(), self._ranks_along(first, last)
            if len(ranks) < everyone.size:  # else keep its native collectives
                everyone = Group(everyone, ranks)
            self._workers = DataAxis(self[first], self[last], self.beside(last), everyone)
        return self._workers

    def _ranks_along(self, *axes: str) -> list[int]:
        """Return this rank and those that differ from it only along these axes."""
        at = tuple(slice(None) if name in axes else position for name, position in self._coordinates.items())
        return self._grid[at].reshape(-1).tolist()

    def __repr__(self) -> str:
        return f"Mesh({_shown(self.axes)}, rank {self.communicator.rank} at {_shown(self._coordinates)})"


def _shown(axes: Mapping[str, int]) -> str:
    return " x ".join(f"{name} {size}" for name, size in axes.items())


def _remedy(axes: Mapping[str, int], size: int) -> str:
    """Return a remedy: the closest numbers of ranks that fit all axes but the first."""
    inner = math.prod(list(axes.values())[1:])
    near = sorted({max(1, size // inner) * inner, (size // inner + 1) * inner})
    return f"Start {' or '.join(map(str, near))} ranks with these, or change the axes"
