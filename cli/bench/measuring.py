"""What all benchmarks have in common: the ranks that measure, and tell the launcher."""

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
        ranks: Int. How many to start.
        module: String. Its argument is `wanted` as JSON; each line that the chief writes is a JSON object.
        wanted: What to measure.
        total: Int. How many messages have a `"row"`.
        describe: Callable. Takes a message; returns what is being measured now, or `None`.
        servers: Int. How many of the ranks, the last ones, are servers. Defaults to `0`.
        devices: Int. How many devices each rank drives, in-graph. Defaults to `0`: between-graph.
        bandwidth: String. That of what leaves a rank, if it is slowed down. Defaults to `None`: it is not.
        latency: String. What that takes longer. Defaults to `None`.
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
