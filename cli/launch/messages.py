"""What is said of a rank by the worker that has started it, and by the watchdog inside that: lines of JSON."""

import json
import signal
from typing import Any, Literal, TypedDict, cast

__all__ = ["TO_END", "Ended", "Farewell", "Message", "Moves", "Stands", "Started", "Step", "Wait", "decode"]

# What mpirun passes on to ranks of other hosts, whose workers make a SIGTERM of it: at that it would end them itself.
TO_END = signal.SIGPWR


class Started(TypedDict):
    """The worker of a rank has started, on this host."""

    kind: Literal["started"]
    host: str


class Step(TypedDict):
    """A rank has come one step further on its way to the others.

    `loads`: it has loaded TensorFlow. `begins`: it begins with MPI. `meets`: all ranks have. `called`: a spare becomes
    a rank. `joined`: it takes part.
    """

    kind: Literal["loads", "begins", "meets", "called", "joined"]


class Farewell(TypedDict):
    """What a rank has told of its end itself."""

    met: bool  # whether all ranks had begun with MPI
    in_fit: bool
    leave: int  # of `progress.Leave`
    missed: int  # 1 plus the rank that had ended while this one waited for it; 0 if there was none


class Ended(Farewell):
    """A rank has ended: `status` is as `os.waitpid` gives it."""

    kind: Literal["ended"]
    host: str
    status: int
    when: int  # nanoseconds on the clock of its host


class _Wait(TypedDict):
    seconds: float
    what: str


class Wait(_Wait, total=False):
    """One thread of a rank waits for others."""

    exchange: str
    purpose: str
    missing: list[int]  # the ranks for which it waits
    ends_job: bool  # false if it is only told of


class Moves(TypedDict):
    """A rank that has stood still goes on."""

    kind: Literal["moves"]


class Stands(TypedDict):
    """A rank stands still, or was asked where it is; see `easyscale.progress.Progress`."""

    kind: Literal["stands"]
    host: str
    pid: int
    connected: bool
    waits: list[Wait]
    phase: int
    step: int
    exchanges: int
    activity: int
    idle: float  # seconds since it has moved
    busy: bool  # it computes, and may take its time
    state: str  # of its process, as `ps` has it
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
