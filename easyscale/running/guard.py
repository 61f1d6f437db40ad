"""The process between the caller of `run` and the launcher; its arguments are a folder and a command.

Its stdin is a pipe from the caller. Each byte is the number of a signal to forward to the launcher. The pipe closes
when the caller ends, for whatever reason; then the launcher receives SIGTERM and the folder is removed. Imports are
light, because every `run` waits for them.
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
    """Run the command and return its exit code; if a signal ended it, 128 plus its number."""
    folder, *command = sys.argv[1:]
    launcher = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, preexec_fn=lambda: leftovers.die_with_parent(signal.SIGTERM)
    )
    orders, end = [0], os.pidfd_open(launcher.pid)  # `end` is readable after the launcher has ended
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
