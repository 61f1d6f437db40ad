"""The program that a spare runs. Its arguments are a script and the script's arguments. It is idle until called.

MPI initialises when all processes have reached it, and waiting inside MPI keeps a core busy. So a spare sleeps until it
is notified that all ranks have reached it. When it is called it runs the script as Python would, in place of a failed
rank. Over the socket `EASYSCALE_SPARE` the process that has started it signals it to begin, and it reports, in a line
each, the rank that it replaces and that it has joined the others.
"""

import os
import sys
import threading
import time
from collections.abc import Callable

from easyscale import communicator as communicators
from easyscale.as_main import run_as_main
from easyscale.elastic.ending import end_alone
from easyscale.elastic.membership import Membership
from easyscale.progress import Leave
from easyscale.settings import Settings

__all__ = ["main"]

_LOOK_SECONDS = 0.1


def main() -> None:
    """Wait to be called, then run the script. The script's errors are raised unchanged."""
    tell = _wait_to_begin()
    communicator = communicators.get("mpi")
    membership = communicator.membership
    rank = membership.wait_for_call()
    tell(f"replaces {rank}")
    threading.Thread(target=_watch, args=(membership, tell), name="easyscale-spare", daemon=True).start()
    try:
        run_as_main(sys.argv[1:])
    except SystemExit as error:
        if membership.is_joining and error.code not in (None, 0):  # otherwise it would wait until the others end
            if not isinstance(error.code, int):
                print(error.code, file=sys.stderr)
            end_alone(communicator.progress, Leave.RAISED)
        raise


def _wait_to_begin() -> Callable[[str], None]:
    """Sleep until all ranks have reached MPI, if a launcher reports that; return a function that sends it a line."""
    file = Settings.read().spare
    if file is None:
        return lambda line: None
    os.set_inheritable(file, False)
    os.read(file, 1)

    def tell(line: str) -> None:
        os.write(file, f"{line}\n".encode())

    return tell


def _watch(membership: Membership, tell: Callable[[str], None]) -> None:
    while membership.is_joining:
        membership.end_if_over()
        time.sleep(_LOOK_SECONDS)
    tell("joined")


if __name__ == "__main__":
    main()
