"""Waiting for other ranks: without occupying the core, and not forever.

After a short spin, or immediately in a background thread, the core is left to threads that compute. A rank that leaves
while others still wait for it is noticed, and a long wait is reported to the watcher.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator

from easyscale.communicator.mpi.start import MPI, said
from easyscale.communicator.wait import Wait, is_patient
from easyscale.elastic.departures import Departures
from easyscale.elastic.membership import Membership
from easyscale.errors import LostError, PeerError
from easyscale.progress import Progress

__all__ = ["Waiting"]

_SPIN_SECONDS = 0.001  # poll this long, yielding the core; then sleep between polls
_NAP_SECONDS = 0.0001  # at first; later a twentieth of the time waited so far
_PATIENT_NAP_SECONDS = 0.0005  # at first, beside a computing thread: each wake-up costs that some 20 µs
_LONG_NAP_SECONDS = 0.005
_GRACE_SECONDS = 3.0  # a rank may leave while its messages are still in transit
_NOTED_SECONDS = 0.25  # a wait this long is recorded for the watcher
_TOO_LONG = MPI.ERR_TRUNCATE  # a message is longer than its receive buffer
_LOST = {getattr(MPI, name, -1) for name in ("ERR_PROC_FAILED", "ERR_PROC_FAILED_PENDING")}


class Waiting:
    """Waiting for other ranks, which notices failed and departed ones.

    Args:
        membership: `Membership`: the ranks.
        departures: `Departures`.
        progress: `Progress` of this process.
    """

    def __init__(self, membership: Membership, departures: Departures, progress: Progress):
        self.membership, self._departures, self._progress = membership, departures, progress

    def poll(self, done: Callable[[], bool], wait: Wait) -> None:
        """See `Communicator.poll`."""
        action, missing, ranks = wait.action, wait.missing, self.membership
        started = time.monotonic()
        left = left_at = slot = None
        spin, nap = (0.0, _PATIENT_NAP_SECONDS) if is_patient() else (_SPIN_SECONDS, _NAP_SECONDS)
        self._progress.moved()
        try:
            while not done():
                now = time.monotonic()
                if now - started < spin:
                    os.sched_yield()
                    continue
                waited = now - (left_at or started)
                time.sleep(min(max(nap, waited / 20), _LONG_NAP_SECONDS))
                if slot is None and wait.stalls and waited > _NOTED_SECONDS:
                    whom = missing and [ranks.initial_ranks[rank] for rank in missing()]
                    slot = self._progress.begin_wait(started, action, whom)
                if ranks.is_in_vain(wait.notices):
                    raise self._lost(action)
                if left is None:
                    gone = map(ranks.world_ranks.index, self._departures.left.intersection(ranks.world_ranks))
                    left = next((rank for rank in gone if missing is None or rank in missing()), None)
                    left_at = None if left is None else time.monotonic()
                elif waited > _GRACE_SECONDS:
                    if missing is not None and left not in missing():  # its messages arrived late
                        left = left_at = None
                        continue
                    raise PeerError(
                        f"{ranks.name} every rank must take part to the end. "
                        f"Rank {ranks.initial_ranks[left]} has ended while this rank {action}. "
                        "Call `fit()`, and all else that ranks do together, on each of them",
                        left,
                    )
        finally:
            self._progress.moved()
            if slot is not None:
                self._progress.end_wait(slot)

    def wait(self, request: MPI.Request, action: str, missing: Callable[[], list[int]] | None = None) -> int:
        """Wait for `request` without occupying the core; return the number of bytes received. See `poll`.

        Raises:
            PeerError: If a rank that the request depends on has left.
        """
        status = MPI.Status()
        try:
            self.poll(lambda: request.Test(status), Wait(action, missing, notices=True))
        except MPI.Exception as error:
            raise self.named(error, action) from None
        return status.Get_count(MPI.BYTE)

    @contextlib.contextmanager
    def inside_mpi(self, action: str) -> Iterator[None]:
        """A context for calls in which MPI itself busy-waits."""
        self._progress.moved()
        try:
            yield
        except MPI.Exception as error:
            raise self.named(error, action) from None
        self._progress.moved()

    def named(self, error: MPI.Exception, action: str) -> PeerError:
        """Return the exception to raise for an MPI error."""
        if self.membership.is_elastic and error.Get_error_class() in _LOST:
            return self._lost(action)
        remedy = ". Pass vectors of one length and dtype on all ranks" if error.Get_error_class() == _TOO_LONG else ""
        return PeerError(f"{self.membership.name} MPI failed while this rank {action}: {said(error)}{remedy}")

    def _lost(self, action: str) -> LostError:
        rule = "no rank may fail that others wait for"
        return LostError(f"{self.membership.name} {rule}. Received: one has, as this rank {action}")
