"""The end of a process that other ranks may be waiting for."""

import fcntl
import io
import os
import stat
import sys
import termios
import time
from collections.abc import Callable
from types import TracebackType

from easyscale.communicator.communicator import Communicator
from easyscale.communicator.mpi.start import ENDS_ITSELF, MPI
from easyscale.elastic.departures import Departures
from easyscale.elastic.ending import end_alone
from easyscale.errors import EasyScaleError, PeerError
from easyscale.progress import Leave

__all__ = ["Ending"]

_LONG_NAP_SECONDS = 0.005
_LAST_WORD_SECONDS = 15.0  # for a rank that has left too early to end with its own exit code, on a busy machine
_READER_SECONDS = 3.0  # for the reader of this process's output to read it


class Ending:
    """The end of this process: together with the others, by an exception, or immediately.

    Args:
        communicator: The `Communicator` of all ranks.
        departures: `Departures`.
    """

    def __init__(self, communicator: Communicator, departures: Departures):
        self._communicator, self._departures = communicator, departures
        self._membership, self._progress = communicator.membership, communicator.progress
        self._pid = os.getpid()  # a forked child must not finalise MPI or end the job

    def leave(self) -> None:
        """Sign off from the other ranks when this process ends; see `Departures`."""
        if os.getpid() != self._pid or MPI.Is_finalized():
            return
        membership, progress = self._membership, self._progress
        progress.leave = Leave.DONE
        while membership.is_joining:  # until `end_if_over` ends the process
            time.sleep(_LONG_NAP_SECONDS)
        # Others may have good reason to run longer, such as the chief, which saves the model.
        slot = progress.begin_wait(time.monotonic(), "has come to the end of its script", ends_job=False)
        all_leave = self._departures.leave(membership.world_ranks, membership.answer)
        progress.end_wait(slot)
        is_missed = self._departures.is_missed(membership.world_ranks)
        progress.leave = Leave.TOO_EARLY if not all_leave else Leave.MISSED if is_missed else Leave.DONE
        membership.dismiss()
        if all_leave and ENDS_ITSELF:
            slot = progress.begin_wait(time.monotonic(), "waits for all processes to end with MPI")
            MPI.Finalize()
            progress.end_wait(slot)

    def show(
        self,
        previous_hook: Callable,
        kind: type[BaseException],
        error: BaseException,
        traceback: TracebackType | None,
    ) -> None:
        """Print an uncaught exception and end the job, or only this process if the job is elastic."""
        communicator, membership = self._communicator, self._membership
        if os.getpid() != self._pid:
            previous_hook(kind, error, traceback)
            return
        # A mistake in the script often hits all ranks at once. The first to print it ends the others.
        time.sleep(0.2 * min(communicator.rank, 10))
        if isinstance(sys.stderr, io.StringIO):  # of an outer hook, such as PyTorch's: it is lost with this process
            sys.stderr = sys.__stderr__
        previous_hook(kind, error, traceback)
        if isinstance(error, PeerError) and error.left is not None:
            self._progress.missed = membership.initial_ranks[error.left] + 1
            self._departures.need(membership.world_ranks[error.left])
            time.sleep(_LAST_WORD_SECONDS)  # that rank ends the job with its own exit code
        is_own = not issubclass(kind, EasyScaleError)  # not caused by another rank
        goes_on = membership.is_joining or (is_own and 0 < communicator.rank < communicator.workers)
        if membership.is_elastic and goes_on:
            end_alone(self._progress, Leave.RAISED)
        if not is_own:
            self._progress.leave = Leave.GAVE_UP
        self.abort(1)

    def abort(self, code: int) -> None:
        """End all ranks immediately with the exit code `code`."""
        is_elastic = self._membership.is_elastic
        sys.stdout.flush()
        sys.stderr.flush()
        if is_elastic and self._communicator.size == 1:  # with all others failed, mpirun reports an `Abort` as success
            os._exit(code)
        if self._progress.pid and not is_elastic:  # the watcher tells the launcher; `Abort` might kill it first
            os._exit(code)
        _wait_until_read(2)  # an mpiexec that is told to end may drop unread output
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # all is printed; MPI would add a page of its own
        MPI.COMM_WORLD.Abort(code)


def _wait_until_read(descriptor: int) -> None:
    """Wait for a short time until everything written to a pipe has been read."""
    end = time.monotonic() + _READER_SECONDS
    while stat.S_ISFIFO(os.fstat(descriptor).st_mode) and time.monotonic() < end:
        unread = fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4))
        if unread == bytes(4):
            return
        time.sleep(_LONG_NAP_SECONDS)
