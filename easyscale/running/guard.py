"""Stands between the process that calls `run` and the launcher; its arguments are a folder and a command.

Its standard input is a pipe from that process: each byte is the number of a signal for the launcher, and its end is
that process's end, however that came. Then the launcher is asked to end, and the folder removed. Nothing heavy is
imported: every `run` waits for it.
"""

import os
import select
import shutil
import signal
import subprocess
import sys

from easyscale.cli.launch import leftovers

__all__ = ["main"]


def main() -> int:
    """Start the command, and return its exit code: 128 plus the signal that has ended it, if one has."""
    folder, *command = sys.argv[1:]
    launcher = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, preexec_fn=lambda: leftovers.die_with_parent(signal.SIGTERM)
    )
    orders, end = [0], os.pidfd_open(launcher.pid)  # readable when the process has ended
    while end not in (ready := select.select([*orders, end], [], [])[0]):
        numbers = os.read(0, 64) if ready else b""
        for number in numbers or [signal.SIGTERM]:
            launcher.send_signal(number)
        if not numbers:
            orders.clear()
    code = launcher.wait()
    if not orders:
        shutil.rmtree(folder, ignore_errors=True)
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    sys.exit(main())
