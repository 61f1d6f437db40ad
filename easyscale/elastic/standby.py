"""What a spare runs; its arguments are a script and what that is given. It does nothing until it is called.

MPI begins when all have come to it, and who waits for that inside MPI keeps a core busy. So a spare sleeps until it is
told that all ranks have come. When it is called it runs the script as Python would, in the place of a rank that has
failed. The process that has started it tells it to begin, and is told which rank it is, and when it has joined the
others, by lines over the socket `EASYSCALE_SPARE`.
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
    """Wait to be called, then run the script. An error of the script's is raised as it is."""
    tell = _wait_to_begin()
    communicator = communicators.get("mpi")
    membership = communicator.membership
    rank = membership.wait_for_call()
    tell(f"replaces {rank}")
    threading.Thread(target=_watch, args=(membership, tell), name="easyscale-spare", daemon=True).start()
    try:
        run_as_main(sys.argv[1:])
    except SystemExit as error:
        if membership.is_joining and error.code not in (None, 0):  # else it would wait until the others end
            if not isinstance(error.code, int):
                print(error.code, file=sys.stderr)
            end_alone(communicator.progress, Leave.RAISED)
        raise


def _wait_to_begin() -> Callable[[str], None]:
    """Sleep until all ranks have come to MPI, if a launcher tells of that; return a function that tells a line."""
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
