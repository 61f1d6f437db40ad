"""How a job ended: which rank was the first to fail, from what the ranks report and what mpirun says."""

import os
import signal
from typing import NamedTuple

__all__ = ["Ending", "describe", "first_failure"]


class Ending(NamedTuple):
    """How the rank ended that ended the job. What is not known is `None`."""

    rank: int | None = None
    host: str | None = None
    signal: int | None = None
    code: int | None = None


def first_failure(statuses: list[tuple[int, int]], said: Ending | None) -> Ending | None:
    """Return the ending of the rank that failed first.

    A rank that was killed may have been killed by mpirun, because another had failed.

    Args:
        statuses: Ranks of this host that have failed, in that order, and their statuses as `os.waitpid` gives them.
        said: What mpirun says.
    """
    reports = [
        Ending(rank=rank, signal=os.WTERMSIG(status))
        if os.WIFSIGNALED(status)
        else Ending(rank=rank, code=os.WEXITSTATUS(status))
        for rank, status in statuses
    ]
    by_themselves = [report for report in reports if report.signal not in (signal.SIGTERM, signal.SIGKILL)]
    if by_themselves:
        return by_themselves[0]
    if said is not None and said.rank is not None and said.signal != signal.SIGTERM:
        return said
    return reports[0] if reports else said


def describe(ending: Ending, on_this_host: bool, workers: int | None = None) -> str:
    """Return an ending in words.

    Args:
        ending: `Ending`.
        on_this_host: Bool. Whether the rank was on this host.
        workers: Int. The ranks from this number on are servers. Defaults to `None`: there are none.

    Example:

    >>> describe(Ending(rank=1, host="a", signal=9), on_this_host=False)
    'rank 1 on a was killed by signal 9 (Killed)'
    """
    host = os.uname().nodename if on_this_host else ending.host
    is_server = ending.rank is not None and workers is not None and ending.rank >= workers
    rank = f"rank {ending.rank}, a server," if is_server else f"rank {ending.rank}"
    who = "the job" if ending.rank is None else f"{rank} on {host}" if host else rank.rstrip(",")
    if ending.signal:
        return f"{who} was killed by signal {ending.signal} ({signal.strsignal(ending.signal)})"
    return f"{who} ended with exit code {ending.code}"
