"""The mesh that ranks are where those of a group divide layers among themselves."""

import functools

from easyscale import communicator as communicators
from easyscale.communicator import Communicator
from easyscale.communicator.data_axis import DataAxis
from easyscale.mesh import Mesh
from easyscale.parallel import Split

__all__ = ["ranks_of_group", "workers_of_groups"]


def ranks_of_group(split: Split | None, communicator: str | Communicator | None) -> int:
    """Return how many ranks are one worker with a `Split`; 1 if each is.

    Raises:
        ValueError: If the ranks are no whole groups.
    """
    if split is None or split.group is None:
        return 1
    return split.ranks_of_worker(communicators.get(communicator).size)


def workers_of_groups(communicator: str | Communicator | None, ranks: int) -> DataAxis:
    """Return the workers, of so many neighbouring ranks each. All ranks call this alike."""
    return _workers(communicators.get(communicator), ranks)


@functools.cache
def _workers(communicator: Communicator, ranks: int) -> DataAxis:
    return Mesh(communicator, {"data": communicator.size // ranks, "model": ranks}).workers()
