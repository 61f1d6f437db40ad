"""The mpirun process: leader of its own process group, which ends with this process."""

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
    """An mpirun process. Until it has started, signals to it do nothing.

    Args:
        command: Its command line.
        reaches_others: Bool. Whether it passes `TO_END` on to ranks on other hosts. Defaults to `False`.
    """

    def __init__(self, command: list[str], reaches_others: bool = False):
        self._command, self._reaches_others = command, reaches_others
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, variables: Mapping[str, str]) -> int:
        """Start mpirun, and return its process id.

        It gets these environment variables and those of this process, except another job's settings.
        """
        self._process = subprocess.Popen(
            self._command,
            env={**without(os.environ), **variables},
            stdin=None if _in_foreground() else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C reaches it only through this process
            preexec_fn=end_with_parent,
        )
        return self._process.pid

    @property
    def files(self) -> dict[str, int]:
        """The file descriptors from which its `"stdout"` and `"stderr"` are read."""
        if self._process is None or self._process.stdout is None or self._process.stderr is None:
            return {}
        return {"stdout": self._process.stdout.fileno(), "stderr": self._process.stderr.fileno()}

    @property
    def has_ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def wait(self) -> int:
        """Wait until it has ended; return its exit code, or minus the signal that killed it."""
        assert self._process is not None
        return self._process.wait()

    def send_signal(self, number: int) -> None:
        """Send a signal to mpirun, which passes it on to the ranks."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def ask_others(self) -> bool:
        """Have the ranks on other hosts receive a SIGTERM; return whether they do."""
        if self._reaches_others:
            self.send_signal(TO_END)
        return self._reaches_others and not self.has_ended

    def kill(self) -> None:
        """Kill its whole process group."""
        if self._process is not None and not self.has_ended:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)


def end_with_parent() -> None:
    """Have this process receive a SIGTERM when its parent ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _in_foreground() -> bool:
    """Return whether standard input may be read: a background job must leave the terminal alone."""
    try:
        return not os.isatty(0) or os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False
