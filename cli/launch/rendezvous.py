"""Environment variables for scripts written for other tools: rank, size, and the address of rank 0.

    RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE      as torchrun sets them
    MASTER_ADDR, MASTER_PORT                            where rank 0 may listen, for `torch.distributed`
    KERAS_DISTRIBUTION_JOB_ADDRESSES, ..._NUM_PROCESSES, ..._PROCESS_ID      for `keras.distribution.initialize()`

EasyScale itself uses none of them.
"""

import os
import socket
from collections.abc import Mapping, Sequence

from easyscale.cli.launch.hosts import Host
from easyscale.launchers import Launcher

__all__ = ["PLACE", "meeting_place", "of_rank"]

PLACE = ("MASTER_ADDR", "MASTER_PORT")


def meeting_place(hosts: Sequence[Host] = ()) -> dict[str, str]:
    """Return the variables that say where rank 0 may listen: a port that is currently free on this host.

    Variables that the user has set keep their values.

    Args:
        hosts: The hosts of the ranks, with rank 0 on the first. Defaults to none: this host.
    """
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    found = dict(zip(PLACE, (hosts[0].name if hosts else "127.0.0.1", str(port)), strict=True))
    return {name: os.environ.get(name) or value for name, value in found.items()}


def of_rank(launcher: Launcher | None, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that say which rank this process is.

    Args:
        launcher: The launcher that started this process. `None`: there was none, and it is the only rank.
        environment: The process's variables, including those of `meeting_place` if there are any.

    Example:

    >>> of_rank(None, {})["WORLD_SIZE"]
    '1'
    """
    rank, size = (launcher.rank, launcher.size) if launcher else (0, 1)
    local_rank, local_size = (launcher.local_rank, launcher.local_size) if launcher else (0, 1)
    found: dict[str, int | str | None] = {
        "RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_RANK": local_rank,
        "LOCAL_WORLD_SIZE": local_size,
        "KERAS_DISTRIBUTION_NUM_PROCESSES": size,
        "KERAS_DISTRIBUTION_PROCESS_ID": rank,
    }
    if all(name in environment for name in PLACE):
        found["KERAS_DISTRIBUTION_JOB_ADDRESSES"] = ":".join(environment[name] for name in PLACE)
    return {name: str(value) for name, value in found.items() if value is not None}
