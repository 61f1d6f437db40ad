"""Finds the hosts that answer: those on which mpirun can start a process."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence

from easyscale.cli.launch.hosts import Host
from easyscale.cli.launch.runtimes import Runtime

__all__ = ["answering"]


def answering(
    runtime: Runtime, hosts: Sequence[Host], environment: Mapping[str, str], seconds: float = 8.0
) -> list[Host]:
    """Return the hosts on which a process can start and end within some time; all are tried at once.

    Args:
        runtime: `Runtime`. Starts the processes.
        hosts: The hosts.
        environment: Variables for mpirun, in addition to the environment of this process.
        seconds: Float. How long to wait. Defaults to `8.0`.
    """
    asked = [
        subprocess.Popen(
            runtime.command(1, ["true"], [Host(host.name, 1)], {}, 1),
            env={**os.environ, **runtime.environment(), **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for host in hosts
    ]
    try:
        end = time.monotonic() + seconds
        while any(process.poll() is None for process in asked) and time.monotonic() < end:
            time.sleep(0.05)
        return [host for host, process in zip(hosts, asked, strict=True) if process.poll() == 0]
    finally:
        for process in asked:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
