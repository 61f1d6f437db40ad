"""Parsing of hosts and their slots: `--hosts a:2,b:2`, or a hostfile in the format of any MPI."""

import re
from pathlib import Path
from typing import NamedTuple

__all__ = ["Host", "parse", "place", "read"]


class Host(NamedTuple):
    """A host, and the maximum number of ranks on it."""

    name: str
    slots: int

    def __str__(self) -> str:
        return f"{self.name}:{self.slots}"


_HOST = re.compile(
    r"(?P<name>[A-Za-z0-9](?:[\w.-]*\w)?)(?:(?::|\s+slots\s*=\s*)(?P<slots>\d+))?(?:\s+max[_-]slots\s*=\s*\d+)?"
)


def parse(text: str) -> list[Host]:
    """Return the hosts in a list like `"a:2,b:2"`. A host without a number runs one rank.

    Raises:
        ValueError: If a part is not `name` or `name:slots`, or a host is named twice.
    """
    return _unique([_host(part.strip(), text) for part in text.split(",")])


def read(path: str) -> list[Host]:
    """Return the hosts in a file: one per line, `a:2` or `a slots=2`; `#` starts a comment.

    Raises:
        ValueError: If the file cannot be read, is empty, has an invalid line, or names a host twice.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise ValueError(f"a hostfile must be a file that can be read. Received: '{path}' ({reason})") from None
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    hosts = _unique([_host(line, line) for line in lines if line])
    if not hosts:
        raise ValueError(f"a hostfile must have a line like `name:2` for each host. Received: '{path}', which has none")
    return hosts


def place(hosts: list[Host], ranks: int) -> list[Host]:
    """Assign `ranks` to hosts, filling the hosts in order.

    Example:

    >>> place([Host("a", 2), Host("b", 2)], 3)
    [Host(name='a', slots=2), Host(name='b', slots=1)]
    """
    placed = []
    for host in hosts:
        if ranks > 0:
            placed.append(Host(host.name, min(host.slots, ranks)))
            ranks -= host.slots
    return placed


def _host(part: str, whole: str) -> Host:
    match = _HOST.fullmatch(part)
    slots = int(match["slots"] or 1) if match else 0
    if match is None or slots < 1:
        raise ValueError(
            f"a host must be `name` or `name:slots` with one slot or more. Received: '{part}' in '{whole}'. "
            "Write for example a:2,b:2"
        )
    return Host(match["name"], slots)


def _unique(hosts: list[Host]) -> list[Host]:
    for index, host in enumerate(hosts):
        if host.name in {earlier.name for earlier in hosts[:index]}:
            raise ValueError(f"each host must be named once. Received: '{host.name}' twice. Add up its slots")
    return hosts
