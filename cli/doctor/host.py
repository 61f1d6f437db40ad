"""The checks of one host. On a remote host, this module runs as a program that prints the results as a line of JSON."""

import json
import os
import sys
from typing import Any, NamedTuple

from easyscale.cli.doctor import machine, software
from easyscale.cli.doctor.finding import Finding

__all__ = ["Host", "decode", "examine"]


class Host(NamedTuple):
    """The results for one host.

    Attributes:
        findings: List of `Finding`.
        versions: Dict. The versions that must be the same on all hosts, by package.
    """

    findings: list[Finding]
    versions: dict[str, str]


def examine(processes: int | None = None) -> Host:
    """Examine this host.

    Args:
        processes: Int. Number of ranks to run on it. Defaults to `None`: one per core, and at least 2.
    """
    processes = max(2, len(os.sched_getaffinity(0))) if processes is None else processes
    return Host([*software.examine(), *machine.examine(processes)], software.versions())


def decode(message: dict[str, Any], name: str) -> Host:
    """Decode what the program has printed on the host of this name."""
    return Host([Finding(*found)._replace(host=name) for found in message["findings"]], message["versions"])


if __name__ == "__main__":
    print(json.dumps(examine(int(sys.argv[1]))._asdict()), flush=True)
