"""Shared by all benchmarks: starts the measuring ranks, and collects their messages."""

import json
import os
import sys
from collections.abc import Callable

from easyscale import run_module
from easyscale.cli import reports
from easyscale.settings import Devices, Settings

__all__ = ["run_ranks"]


def run_ranks(
    ranks: int,
    module: str,
    wanted: dict,
    total: int,
    describe: Callable[[dict], str | None],
    servers: int = 0,
    devices: int = 0,
    bandwidth: str | None = None,
    latency: str | None = None,
) -> list[dict]:
    """Start ranks that run `module`, show progress on stderr, and return the messages of the chief.

    Args:
        ranks: Int. Number of ranks to start.
        module: String. The module to run. Its argument is `wanted` as JSON; the chief prints one JSON object per line.
        wanted: What to measure.
        total: Int. Number of messages with a `"row"`.
        describe: Callable. Takes a message; returns what is being measured now, or `None`.
        servers: Int. Number of ranks, the last ones, that are servers. Defaults to `0`.
        devices: Int. Number of devices that each rank drives, in-graph. Defaults to `0`: between-graph.
        bandwidth: String. Limit on each rank's outgoing bandwidth. Defaults to `None`: no limit.
        latency: String. Delay added to each rank's messages. Defaults to `None`.
    """
    import rich.console

    from easyscale.cli.launch import job, runtimes
    from easyscale.cli.launch.output import Screen

    mpi = runtimes.find()
    messages = []
    partial = b""
    progress = reports.progress(rich.console.Console(stderr=True))

    def take(data: bytes) -> None:
        nonlocal partial
        *lines, partial = (partial + data).split(b"\n")
        for message in map(json.loads, lines):
            messages.append(message)
            if (now := describe(message)) is not None:
                progress.update(task, description=now)
            progress.advance(task, "row" in message)

    start = job.worker_command(run_module.command(module, json.dumps(wanted))[1:])
    quiet = {"TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2")}
    replication = "in_graph" if devices else "between_graph"
    told = Settings(
        replication=replication,
        servers=servers,
        devices=Devices(devices) if devices else None,
        bandwidth=bandwidth,
        latency=latency,
    )
    line = mpi.command(ranks, start, [], quiet | told.variables(), len(os.sched_getaffinity(0)))
    with progress:
        task = progress.add_task(f"starting {ranks} ranks", total=total)
        code = job.Job(mpi, line, Screen(chief=take), on_this_host=True, processes=ranks).run()
    if code and not any("wrong" in message for message in messages):
        sys.exit(code)
    return messages
