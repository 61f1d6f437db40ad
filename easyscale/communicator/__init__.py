"""Communication between ranks: over MPI, or between threads of one process.

get("mpi")      processes started by `easyscale launch`, `mpirun` or `srun`
get("local")    threads of one process, started by `run_ranks`; a single rank without it
get()           "mpi" where a launcher started several ranks, "local" otherwise
"""

import atexit
import functools
import os
import sys

from easyscale import launchers, quantities
from easyscale.communicator import local
from easyscale.communicator.communicator import Communicator, Request, Traffic
from easyscale.communicator.local import run_ranks
from easyscale.communicator.throttled import Line, Throttled
from easyscale.communicator.wait import Wait
from easyscale.errors import LaunchError, show_in_one_line, unknown
from easyscale.settings import Settings
from easyscale.timeline import Timeline

__all__ = ["Communicator", "Request", "Traffic", "Wait", "get", "run_ranks"]


def get(identifier: str | Communicator | None = None) -> Communicator:
    """Return a communicator. The same call returns the same object each time.

    Args:
        identifier: `"mpi"`, `"local"`, a `Communicator`, or `None` for `"mpi"` where a launcher started several
            ranks and `"local"` otherwise. Defaults to `None`.

    Raises:
        ValueError: If there is no such communicator, or one of EasyScale's environment variables is invalid.
        LaunchError: If the ranks cannot connect: mpi4py is missing or does not know the launcher, or torchrun has
            started them.

    Example:

    >>> easyscale.communicator.get("local").size
    1
    """
    if isinstance(identifier, Communicator):
        return identifier
    if identifier is None:
        own = local.current()
        try:
            start, told = launchers.detect(), Settings.read()
        except ValueError:
            show_in_one_line()
            raise
        if start is not None or told.launched == os.getpid():
            show_in_one_line()
        if own.size == 1 and start is None and told.launched is None:
            _check_not_torchrun()
        identifier = "mpi" if own.size == 1 and start is not None and start.size > 1 else "local"
    if identifier == "local":
        return local.current()
    if identifier == "mpi":
        show_in_one_line()
        return _world()
    raise ValueError(unknown("communicator", identifier, ["local", "mpi"], " or a `Communicator`"))


def _check_not_torchrun() -> None:
    """Raise `LaunchError` if torchrun has started several processes, each of which would train alone."""
    size = os.environ.get("WORLD_SIZE", "")
    if "TORCHELASTIC_RUN_ID" in os.environ and size.isdigit() and int(size) > 1:
        show_in_one_line()
        raise LaunchError(
            "ranks must be started by `easyscale launch`, mpirun or srun, to know each other. Received: torchrun, with "
            f"{size} processes. Run: easyscale launch -n {size} {os.path.basename(sys.argv[0]) or 'train.py'}"
        )


@functools.cache
def _world() -> Communicator:
    """Return the communicator of all MPI ranks, slowed down if the environment asks for it."""
    from easyscale.communicator import mpi

    world, told = mpi.world(), Settings.read()
    if (told.profile or told.trace) and told.elastic is None and told.replication != "in_graph":
        world.timeline = Timeline(is_on=True, traced=quantities.parse_steps(told.trace_steps))
        if world.is_chief:
            atexit.register(_tell_of_no_step, world.timeline)
    if told.bandwidth is None and told.latency is None:
        return world
    bandwidth = quantities.parse_bandwidth(told.bandwidth) if told.bandwidth else None
    return Throttled(world, Line(bandwidth, quantities.parse_seconds(told.latency or "0s")))


def _tell_of_no_step(timeline: Timeline) -> None:
    if timeline.number < 0 and not timeline.is_told:
        print(
            "EasyScale: no step was recorded: --profile and --trace are for steps of a `fit()` with `Distribute`, and "
            "there was none",
            flush=True,
        )
