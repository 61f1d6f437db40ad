"""Workers in a grid with named axes: each axis of a rank is a communicator of its own.

What travels along one axis never meets what travels along another. Gradients go along `"data"`, between the ranks that
have the same weights; activations along `"model"`, between those that have different ones.
"""

import math
from collections.abc import Mapping

import numpy as np

from easyscale.communicator import Communicator
from easyscale.communicator.data_axis import DataAxis
from easyscale.communicator.group import Group
from easyscale.errors import unknown

__all__ = ["Mesh", "ranks_of_worker", "set_ranks_of_worker"]

_ranks_of_worker = 1  # neighbours that train one copy of the model, as the script has said last


def ranks_of_worker() -> int:
    """Return how many neighbouring ranks are one worker: those of a pipeline, or that share a batch; else 1."""
    return _ranks_of_worker


def set_ranks_of_worker(count: int) -> None:
    """Let so many neighbouring ranks be one worker, to `easyscale.size()`, `shard` and `local_batch`."""
    global _ranks_of_worker
    _ranks_of_worker = count


class Mesh:
    """The ranks of a communicator, in a grid whose last axis goes through neighbours.

            model 0   model 1
        data 0   0 ------- 1        mesh["model"] of rank 2: ranks 2 and 3
                 |         |        mesh["data"] of rank 2: ranks 0 and 2
        data 1   2 ------- 3

    Args:
        communicator: The `Communicator`. All of its ranks make the mesh alike.
        axes: Dict. For each axis, by name, its number of ranks.

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
        """Return the communicator of the ranks that differ from this one along one axis only, and this one."""
        if axis not in self._groups:
            raise ValueError(unknown("axis", axis, list(self._groups)))
        return self._groups[axis]

    def beside(self, axis: str) -> Communicator:
        """Return another communicator of an axis, for a thread beside: its messages never meet those of the first.

        All ranks must call this alike the first time.
        """
        if axis not in self._beside:
            self._beside[axis] = Group(self.communicator.duplicate(), self._ranks[axis])
        return self._beside[axis]

    def workers(self) -> DataAxis:
        """Return the ranks along the first axis as workers, of which each is a group along the last one.

        With other axes between, they are the ranks that are at one place there. All ranks must call this alike the
        first time.
        """
        if self._workers is None:
            first, last = list(self.axes)[0], list(self.axes)[-1]
            everyone, ranks = self.communicator.duplicate(), self._ranks_along(first, last)
            if len(ranks) < everyone.size:  # else it has the collectives of its own
                everyone = Group(everyone, ranks)
            self._workers = DataAxis(self[first], self[last], self.beside(last), everyone)
        return self._workers

    def _ranks_along(self, *axes: str) -> list[int]:
        """Return the ranks that differ from this one along these axes only, and this one."""
        at = tuple(slice(None) if name in axes else position for name, position in self._coordinates.items())
        return self._grid[at].reshape(-1).tolist()

    def __repr__(self) -> str:
        return f"Mesh({_shown(self.axes)}, rank {self.communicator.rank} at {_shown(self._coordinates)})"


def _shown(axes: Mapping[str, int]) -> str:
    return " x ".join(f"{name} {size}" for name, size in axes.items())


def _remedy(axes: Mapping[str, int], size: int) -> str:
    """What makes the last axes fit: another number of ranks."""
    inner = math.prod(list(axes.values())[1:])
    near = sorted({max(1, size // inner) * inner, (size // inner + 1) * inner})
    return f"Start {' or '.join(map(str, near))} ranks with these, or change the axes"
