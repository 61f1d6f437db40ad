"""What is found on one host. On another one it runs as a program, which writes it as a line of JSON."""

import json
import os
import sys
from typing import Any, NamedTuple

from easyscale.cli.doctor import machine, software
from easyscale.cli.doctor.finding import Finding

__all__ = ["Host", "decode", "examine"]


class Host(NamedTuple):
    """What is found on a host.

    Attributes:
        findings: List of `Finding`.
        versions: Dict. What has to be alike on all hosts.
    """

    findings: list[Finding]
    versions: dict[str, str]


def examine(processes: int | None = None) -> Host:
    """Return what is found on this host.

    Args:
        processes: Int. How many ranks it is to run. Defaults to `None`: one for each core, as `easyscale launch` does.
    """
    processes = max(2, len(os.sched_getaffinity(0))) if processes is None else processes
    return Host([*software.examine(), *machine.examine(processes)], software.versions())


def decode(message: dict[str, Any], name: str) -> Host:
    """Return what the program has written on the host of this name."""
    return Host([Finding(*found)._replace(host=name) for found in message["findings"]], message["versions"])


if __name__ == "__main__":
    print(json.dumps(examine(int(sys.argv[1]))._asdict()), flush=True)
