"""The mesh of ranks if each layer is split over a group of ranks."""

import functools

from easyscale import communicator as communicators
from easyscale.communicator import Communicator
from easyscale.communicator.data_axis import DataAxis
from easyscale.mesh import Mesh
from easyscale.parallel import Split

__all__ = ["ranks_of_group", "workers_of_groups"]


def ranks_of_group(split: Split | None, communicator: str | Communicator | None) -> int:
    """Return the number of ranks of a worker with a `Split`; 1 if each rank is one.

    Raises:
        ValueError: If the ranks cannot be divided into groups.
    """
    if split is None or split.group is None:
        return 1
    return split.ranks_of_worker(communicators.get(communicator).size)


def workers_of_groups(communicator: str | Communicator | None, ranks: int) -> DataAxis:
    """Return the workers, of `ranks` neighbouring ranks each. All ranks must call this."""
    return _workers(communicators.get(communicator), ranks)


@functools.cache
def _workers(communicator: Communicator, ranks: int) -> DataAxis:
    return Mesh(communicator, {"data": communicator.size // ranks, "model": ranks}).workers()
