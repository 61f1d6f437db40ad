"""The launcher of a `run` and its workers, as the process sees them that has started them."""

import codecs
import contextlib
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import TracebackType

__all__ = ["Job"]

_QUIET_SECONDS = 0.5  # without output after the end: then only processes that workers have left behind keep it open
_PATIENCE = 60.0  # seconds that a job has to end; the launcher itself gives it less
_KEPT = 1 << 14  # characters of what was written to stderr last


class Job:
    """A context in which workers run: at its end they are gone.

    Args:
        folder: String. What is removed if this process is killed.
        command: The command line of the launcher.
        environment: Its environment variables.

    Attributes:
        errors: String. What was written to stderr last.
    """

    def __init__(self, folder: str, command: Sequence[str], environment: Mapping[str, str]):
        self._command = [sys.executable, "-m", "easyscale.running.guard", folder, *command]
        self._environment = environment
        # At a second signal the launcher ends at once; a single worker, which it has become, by that one.
        self._interrupts = [signal.SIGINT, signal.SIGTERM, signal.SIGKILL]
        self.errors = ""

    def __enter__(self) -> "Job":
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            self._command, stdin=pipe, stdout=pipe, stderr=pipe, env=dict(self._environment), start_new_session=True
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for file in (self._process.stdout, self._process.stderr):
            assert file is not None
            file.close()

    def show(self) -> int:
        """Write what the job writes to `sys.stdout` and `sys.stderr` until it ends; return its exit code."""
        with selectors.DefaultSelector() as selector:
            for name in ("stdout", "stderr"):
                decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
                selector.register(getattr(self._process, name), selectors.EVENT_READ, (name, decoder))
            while selector.get_map():
                events = selector.select(_QUIET_SECONDS)
                if not events and self._process.poll() is not None:
                    break
                for key, _ in events:
                    data = os.read(key.fd, 1 << 16)
                    name, decoder = key.data
                    self._write(name, decoder.decode(data, final=not data))
                    if not data:
                        selector.unregister(key.fileobj)
        return self._process.wait()

    def _write(self, name: str, text: str) -> None:
        if name == "stderr":
            self.errors = (self.errors + text)[-_KEPT:]
        stream = getattr(sys, name)  # of a notebook: that of the cell that runs now
        if stream is not None and text:
            stream.write(text)
            stream.flush()

    def interrupt(self) -> None:
        """Have the job end as by Ctrl-C in its terminal; at once if it was asked to before."""
        assert self._process.stdin is not None
        number = self._interrupts.pop(0) if len(self._interrupts) > 1 else self._interrupts[0]
        with contextlib.suppress(OSError):  # it has ended
            os.write(self._process.stdin.fileno(), bytes([number]))
