"""The process of mpirun: leader of a group of its own, which ends with this process."""

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Mapping

from easyscale.cli.launch.messages import TO_END
from easyscale.settings import without

__all__ = ["Mpirun", "end_with_parent"]

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


class Mpirun:
    """A process that may not have started yet: signals to it do nothing then.

    Args:
        command: Its command line.
        reaches_others: Bool. Whether it passes `TO_END` on to ranks of other hosts. Defaults to `False`.
    """

    def __init__(self, command: list[str], reaches_others: bool = False):
        self._command, self._reaches_others = command, reaches_others
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, variables: Mapping[str, str]) -> int:
        """Start it with these environment variables, and those of this process that are no settings of another job's.

        Return its number.
        """
        self._process = subprocess.Popen(
            self._command,
            env={**without(os.environ), **variables},
            stdin=None if _in_foreground() else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C reaches it through us only
            preexec_fn=end_with_parent,
        )
        return self._process.pid

    @property
    def files(self) -> dict[str, int]:
        """The file descriptors of its `"stdout"` and `"stderr"`, to read."""
        if self._process is None or self._process.stdout is None or self._process.stderr is None:
            return {}
        return {"stdout": self._process.stdout.fileno(), "stderr": self._process.stderr.fileno()}

    @property
    def has_ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def wait(self) -> int:
        """Return its exit code when it has ended; below 0 it is that of a signal."""
        assert self._process is not None
        return self._process.wait()

    def send_signal(self, number: int) -> None:
        """Send a signal to mpirun itself, which passes it on to the ranks."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def ask_others(self) -> bool:
        """Have the ranks of other hosts get a SIGTERM; return whether they do."""
        if self._reaches_others:
            self.send_signal(TO_END)
        return self._reaches_others and not self.has_ended

    def kill(self) -> None:
        """Kill all that is in its process group."""
        if self._process is not None and not self.has_ended:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)


def end_with_parent() -> None:
    """Have this process get a SIGTERM when the one that started it ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _in_foreground() -> bool:
    """Whether standard input may be read: a job in the background must leave the terminal alone."""
    try:
        return not os.isatty(0) or os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False
