"""What scripts written for other tools look for: who they are among all processes, and where the first one is.

    RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE      as torchrun sets them
    MASTER_ADDR, MASTER_PORT                            where rank 0 may listen, for `torch.distributed`
    KERAS_DISTRIBUTION_JOB_ADDRESSES, ..._NUM_PROCESSES, ..._PROCESS_ID      for `keras.distribution.initialize()`

EasyScale uses none of them.
"""

import os
import socket
from collections.abc import Mapping, Sequence

from easyscale.cli.launch.hosts import Host
from easyscale.launchers import Launcher

__all__ = ["PLACE", "meeting_place", "of_rank"]

PLACE = ("MASTER_ADDR", "MASTER_PORT")


def meeting_place(hosts: Sequence[Host] = ()) -> dict[str, str]:
    """Return the variables that say where rank 0 may listen: a port that is free on this host now.

    What the user has set stays.

    Args:
        hosts: Where ranks run, rank 0 on the first of them. Defaults to none: on this host.
    """
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    found = dict(zip(PLACE, (hosts[0].name if hosts else "127.0.0.1", str(port)), strict=True))
    return {name: os.environ.get(name) or value for name, value in found.items()}


def of_rank(launcher: Launcher | None, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that say which of all processes this one is.

    Args:
        launcher: What has started it. `None`: nothing; it is the only one.
        environment: Its variables, with those of `meeting_place` among them if there are some.

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
