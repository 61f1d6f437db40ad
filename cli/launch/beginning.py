"""MPI startup: tracks the ranks that have reached it, and the spares that wait. All processes start MPI together.

A rank that waits inside MPI keeps a core busy. There may be many spares, so they sleep until the launcher tells them
that all ranks have reached MPI startup.
"""

import contextlib

from easyscale.cli.launch.ending import Ending
from easyscale.cli.launch.membership import Process
from easyscale.cli.launch.streams import Rank
from easyscale.progress import Leave

__all__ = ["Beginning"]


class Beginning:
    """Tracks which processes have reached MPI startup, as reported to the launcher.

    Args:
        ranks: Int. Number of ranks that must reach it before spares may. Defaults to `None`: there are no spares.

    Attributes:
        is_over: Bool. Whether all processes, including spares, have started MPI.
    """

    def __init__(self, ranks: int | None = None):
        self._absent = set(range(ranks or 0))
        self._come: set[int] = set()
        self._loaded: set[int] = set()
        self._never: dict[int, Ending] = {}  # ranks that ended successfully without MPI
        self._spares: dict[Process, Rank] = {}
        self.is_over = False

    def add_spare(self, spare: Rank) -> Process:
        """Add a spare that has started; let it start MPI if all ranks have reached that point."""
        process = Process(spare.rank)
        self._spares[process] = spare
        if not self._absent:
            _let_begin(spare)
        return process

    def remove_spare(self, process: Process) -> None:
        """Remove a spare that has ended or become a rank."""
        self._spares.pop(process, None)

    @property
    def spares(self) -> dict[Process, Rank]:
        """The waiting spares."""
        return self._spares

    def come(self, rank: int) -> None:
        """Record that a rank has reached MPI startup."""
        self._come.add(rank)
        if rank in self._absent:
            self._absent.discard(rank)
            for spare in [] if self._absent else self._spares.values():
                _let_begin(spare)

    def load(self, rank: int) -> None:
        """Record that a rank has loaded TensorFlow."""
        self._loaded.add(rank)

    @property
    def stayed_apart(self) -> int:
        """The number of ranks that have loaded TensorFlow; 0 if any rank has used EasyScale."""
        return 0 if self._come else len(self._loaded)

    def end(self, ending: Ending) -> None:
        """Record how a rank has ended."""
        if ending.rank is not None and not (ending.met or ending.is_failure):
            self._never[ending.rank] = ending

    @property
    def missed(self) -> Ending | None:
        """The ending of a rank that never reached MPI startup while others wait there; `None` if there is none."""
        waiting = self._come - self._never.keys()
        return next(iter(self._never.values()))._replace(leave=Leave.TOO_EARLY) if waiting and self._never else None


def _let_begin(spare: Rank) -> None:
    with contextlib.suppress(OSError):  # the spare has ended
        spare.connection.sendall(b"begin\n")
