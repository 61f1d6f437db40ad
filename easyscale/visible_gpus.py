"""Division of a node's GPUs: each rank sees only its share, set before a framework looks for GPUs.

Frameworks compute on the first GPU that they see, and TensorFlow reserves the memory of all. No heavy imports: `import
easyscale` loads this module.
"""

import os
import re
from collections.abc import Mapping, MutableMapping, Sequence

from easyscale.launchers import Launcher
from easyscale.settings import Settings

__all__ = ["are_divided", "divide", "found", "share"]

_VARIABLE = "CUDA_VISIBLE_DEVICES"
_divided: list[str] = []  # this process's share of its node's GPUs, if they are divided


def are_divided() -> bool:
    """Return whether this process sees only its own share of the GPUs."""
    return bool(_divided)


def share(gpus: Sequence[str], local_rank: int, local_size: int) -> list[str]:
    """Return the GPUs of one rank: an equal share, or one GPU that it shares with other ranks.

    Args:
        gpus: Strings. All GPUs of the node.
        local_rank: Int. The rank's number on its node.
        local_size: Int. The number of ranks on the node.

    Example:

    >>> share(["0", "1", "2", "3"], local_rank=1, local_size=2), share(["0", "1"], local_rank=3, local_size=4)
    (['2', '3'], ['1'])
    """
    count = len(gpus) // local_size
    return list(gpus[local_rank * count : (local_rank + 1) * count] if count else gpus[local_rank % len(gpus) :][:1])


def divide(launcher: Launcher, environment: MutableMapping[str, str], devices: str = "/dev") -> None:
    """Make only its share of the GPUs visible to this process, if its node has several GPUs and several ranks.

    An existing `CUDA_VISIBLE_DEVICES` is respected: a single GPU stays as it is, and several are divided among the
    ranks. With in-graph replication the strategy divides them.

    Args:
        launcher: The `Launcher` that has started this process.
        environment: The environment of this process.
        devices: String. The folder of device files. Defaults to `"/dev"`.
    """
    rank, size = launcher.local_rank, launcher.local_size
    try:
        in_graph = Settings.read(environment, ["replication"]).replication == "in_graph"
    except ValueError:  # reported where the variable is used
        return
    gpus = found(environment, devices)
    if rank is None or size is None or size < 2 or len(gpus) < 2 or in_graph or are_divided():
        return
    _divided[:] = share(gpus, rank, size)
    environment[_VARIABLE] = ",".join(_divided)


def found(environment: Mapping[str, str], devices: str = "/dev") -> list[str]:
    """Return the names of this node's GPUs: those in `CUDA_VISIBLE_DEVICES`, or the numbers of all.

    Args:
        environment: The variables of a process.
        devices: String. The folder of the devices' files. Defaults to `"/dev"`.
    """
    if (said := environment.get(_VARIABLE)) is not None:
        return [name.strip() for name in said.split(",") if name.strip()]
    names = os.listdir(devices) if os.path.isdir(devices) else []
    files = [name for name in names if re.fullmatch(r"nvidia\d+", name)]
    # A container may have some of the files only; in it GPUs count from 0.
    return [str(number) for number in range(len(files))]
