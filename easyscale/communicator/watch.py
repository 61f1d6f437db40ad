"""In-process stall watchdog, for a rank that no launcher watches."""

import sys
import threading
import time
from collections.abc import Callable

from easyscale.communicator.communicator import Communicator
from easyscale.progress import Activity
from easyscale.settings import STALLED

__all__ = ["watch"]


def watch(communicator: Communicator, timeout: float, abort: Callable[[int], None]) -> None:
    """Start a thread that reports waits of more than `timeout` seconds on stderr, and ends the job after twice that.

    It cannot see the other ranks, so it does not end the job while they may be tracing their first step or evaluating.

    Args:
        communicator: The rank's `Communicator`.
        timeout: Float. 0 disables the watchdog.
        abort: Function. Takes an exit code and ends the job.
    """
    if timeout > 0:
        threading.Thread(
            target=_watch, args=(communicator, timeout, abort), name="easyscale-watch", daemon=True
        ).start()


def _watch(communicator: Communicator, timeout: float, abort: Callable[[int], None]) -> None:
    said = 0
    while True:
        time.sleep(min(1.0, timeout / 8))
        for wait in communicator.progress.waits[:1]:
            ends = wait.seconds > 2 * timeout and communicator.progress.activity == Activity.STEPS
            ends = ends and wait.about.get("ends_job", True)
            if wait.seconds > timeout and (wait.since != said or ends):
                said = wait.since
                progress = communicator.progress
                where = f" in epoch {progress.phase // 2}, step {progress.step + 1}" if progress.phase else ""
                sys.stderr.write(
                    f"easyscale: {communicator.membership.name} on {communicator.host} has been "
                    f"waiting for {wait.seconds:.0f} s{where}: it {wait.about['what']}\n"
                )
            if ends:
                abort(STALLED)
