"""One GPU for each rank: each sees its own share of its node's, before a framework has looked for them.

Frameworks compute on the first GPU that they see, and TensorFlow takes the memory of all. Nothing heavy is imported
here: `import easyscale` does.
"""

import os
import re
from collections.abc import Mapping, MutableMapping, Sequence

from easyscale.launchers import Launcher
from easyscale.settings import Settings

__all__ = ["are_divided", "divide", "found", "share"]

_VARIABLE = "CUDA_VISIBLE_DEVICES"
_divided: list[str] = []  # the GPUs of this process, if they are a share of its node's


def are_divided() -> bool:
    """Return whether this process sees only its own share of the GPUs."""
    return bool(_divided)


def share(gpus: Sequence[str], local_rank: int, local_size: int) -> list[str]:
    """Return the GPUs of one rank: as many as of each other, or one that it shares with others.

    Args:
        gpus: Strings. All of the node's.
        local_rank: Int. The rank's number on its node.
        local_size: Int. How many ranks there are.

    Example:

    >>> share(["0", "1", "2", "3"], local_rank=1, local_size=2), share(["0", "1"], local_rank=3, local_size=4)
    (['2', '3'], ['1'])
    """
    count = len(gpus) // local_size
    return list(gpus[local_rank * count : (local_rank + 1) * count] if count else gpus[local_rank % len(gpus) :][:1])


def divide(launcher: Launcher, environment: MutableMapping[str, str], devices: str = "/dev") -> None:
    """Have this process see its share of the GPUs, if its node has several, and several ranks.

    What the user has said already counts: `CUDA_VISIBLE_DEVICES` with one GPU stays as it is, and of several each rank
    sees a share. With devices in-graph the strategy divides them.

    Args:
        launcher: The `Launcher` that has started it.
        environment: The variables of this process.
        devices: String. The folder of the devices' files. Defaults to `"/dev"`.
    """
    rank, size = launcher.local_rank, launcher.local_size
    try:
        in_graph = Settings.read(environment, ["replication"]).replication == "in_graph"
    except ValueError:  # whoever needs the variable says so
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
