"""How ranks wait for others: politely, and not for ever.

After a short spin, or at once in a thread beside one that computes, the core is given to whoever computes. A rank that
leaves while others still wait for it is noticed, and whoever watches is told of a wait that lasts.
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
_NAP_SECONDS = 0.0001  # at first; who has waited long naps for a twentieth of that
_PATIENT_NAP_SECONDS = 0.0005  # at first, beside a thread that computes: each nap's end costs it some 20 µs
_LONG_NAP_SECONDS = 0.005
_GRACE_SECONDS = 3.0  # a rank may leave while what it sent is still on its way
_NOTED_SECONDS = 0.25  # a wait that has lasted so long is written down for whoever watches
_TOO_LONG = MPI.ERR_TRUNCATE  # of what has come, for the memory it was to go to
_LOST = {getattr(MPI, name, -1) for name in ("ERR_PROC_FAILED", "ERR_PROC_FAILED_PENDING")}


class Waiting:
    """Waits for other ranks, and notices who has failed and who has left.

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
                    if missing is not None and left not in missing():  # what it had sent came late
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
        """Wait for `request` without holding the core; return how many bytes it has received. See `poll`.

        Raises:
            PeerError: If a rank has left without whom the request cannot complete.
        """
        status = MPI.Status()
        try:
            self.poll(lambda: request.Test(status), Wait(action, missing, notices=True))
        except MPI.Exception as error:
            raise self.named(error, action) from None
        return status.Get_count(MPI.BYTE)

    @contextlib.contextmanager
    def inside_mpi(self, action: str) -> Iterator[None]:
        """A context in which MPI itself waits, busily."""
        self._progress.moved()
        try:
            yield
        except MPI.Exception as error:
            raise self.named(error, action) from None
        self._progress.moved()

    def named(self, error: MPI.Exception, action: str) -> PeerError:
        """Return what to raise for an error of MPI's."""
        if self.membership.is_elastic and error.Get_error_class() in _LOST:
            return self._lost(action)
        remedy = ". Pass vectors of one length and dtype on all ranks" if error.Get_error_class() == _TOO_LONG else ""
        return PeerError(f"{self.membership.name} MPI failed while this rank {action}: {said(error)}{remedy}")

    def _lost(self, action: str) -> LostError:
        rule = "no rank may fail that others wait for"
        return LostError(f"{self.membership.name} {rule}. Received: one has, as this rank {action}")
