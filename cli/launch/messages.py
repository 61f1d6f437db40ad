"""Messages about a rank from its worker, and from the worker's watchdog: lines of JSON."""

import json
import signal
from typing import Any, Literal, TypedDict, cast

__all__ = ["TO_END", "Ended", "Farewell", "Message", "Moves", "Stands", "Started", "Step", "Wait", "decode"]

# mpirun passes it on to ranks on other hosts, whose workers turn it into a SIGTERM. At a SIGTERM it would end them.
TO_END = signal.SIGPWR


class Started(TypedDict):
    """Report that the worker of a rank has started on this host."""

    kind: Literal["started"]
    host: str


class Step(TypedDict):
    """Report a rank's next step towards joining the others.

    `loads`: it has loaded TensorFlow. `begins`: it starts MPI. `meets`: all ranks have started MPI. `called`: a spare
    becomes a rank. `joined`: it has joined the others.
    """

    kind: Literal["loads", "begins", "meets", "called", "joined"]


class Farewell(TypedDict):
    """A rank's own record of its end."""

    met: bool  # whether all ranks had started MPI
    in_fit: bool
    leave: int  # of `progress.Leave`
    missed: int  # 1 plus the rank that had ended while this one waited for it; 0 if there was none


class Ended(Farewell):
    """Report that a rank has ended; `status` is as in `os.waitpid`."""

    kind: Literal["ended"]
    host: str
    status: int
    when: int  # nanoseconds on the clock of its host


class _Wait(TypedDict):
    seconds: float
    what: str


class Wait(_Wait, total=False):
    """The wait of one thread of a rank for other ranks."""

    exchange: str
    purpose: str
    missing: list[int]  # the ranks that it waits for
    ends_job: bool  # false if it is only reported


class Moves(TypedDict):
    """Report that a stalled rank has moved again."""

    kind: Literal["moves"]


class Stands(TypedDict):
    """Report that a rank has stalled, and where it is; see `easyscale.progress.Progress`."""

    kind: Literal["stands"]
    host: str
    pid: int
    connected: bool
    waits: list[Wait]
    phase: int
    step: int
    exchanges: int
    activity: int
    idle: float  # seconds since it last moved
    busy: bool  # it is computing, which may take long
    state: str  # of its process, as in `ps`
    left: bool
    stack: str


Message = Started | Step | Ended | Moves | Stands


def decode(line: bytes | str) -> Message | None:
    """Return the message in a line; `None` if there is none.

    Example:

    >>> decode(b'{"kind": "meets"}')
    {'kind': 'meets'}
    """
    try:
        found: Any = json.loads(line)
    except ValueError:
        return None
    return cast(Message, found) if isinstance(found, dict) and "kind" in found else None
