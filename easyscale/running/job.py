"""The launcher of a `run` and its workers, seen from the process that starts them."""

import codecs
import contextlib
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType

from easyscale import run_module
from easyscale.running.folder import Folder

__all__ = ["WORKER", "Job", "write"]

WORKER = "easyscale.running.worker"  # the module that each rank runs

_QUIET_SECONDS = 0.5  # of silence after the end: then only processes that workers have left behind keep the pipes open
_PATIENCE = 60.0  # seconds for a job to end; the launcher's own limit is shorter
_KEPT = 1 << 14  # last characters of stderr to keep


class Job:
    """A context in which workers run; on exit, they have ended.

    Args:
        folder: `Folder`. Has the workers' call. It is removed if this process is killed.
        line: List of strings. The options of `easyscale launch`.
        variables: Dict. Environment variables in addition to those of this process. Defaults to none.

    Attributes:
        errors: String. The end of the job's stderr.
    """

    def __init__(self, folder: Folder, line: Sequence[str], variables: Mapping[str, str] = MappingProxyType({})):
        launch = run_module.command("easyscale", "launch", *line, *run_module.command(WORKER, str(folder))[1:])
        self._command = run_module.command("easyscale.running.guard", str(folder), *launch)
        package = str(Path(__file__).parents[2])  # where the launcher finds this package
        paths = [*filter(None, [os.environ.get("PYTHONPATH")]), package]
        self._environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **variables}
        # The second signal ends the launcher at once, or the single worker that the launcher has become.
        self._interrupts = [signal.SIGINT, signal.SIGTERM, signal.SIGKILL]
        self.errors = ""

    def __enter__(self) -> "Job":
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            self._command, stdin=pipe, stdout=pipe, stderr=pipe, env=self._environment, start_new_session=True
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
        """Copy the job's output to `sys.stdout` and `sys.stderr` until it ends; return its exit code."""
        for name, text in self.output():
            write(name, text)
        return self.wait()

    def wait(self) -> int:
        """Wait for the job to end; return its exit code."""
        return self._process.wait()

    def output(self) -> Iterator[tuple[str, str]]:
        """Yield the job's output until it ends, as pairs of `"stdout"` or `"stderr"` and text."""
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
                    if not data:
                        selector.unregister(key.fileobj)
                    text = decoder.decode(data, final=not data)
                    if name == "stderr":
                        self.errors = (self.errors + text)[-_KEPT:]
                    if text:
                        yield name, text

    def interrupt(self) -> None:
        """Interrupt the job as Ctrl-C in its terminal does; a second call ends it at once."""
        assert self._process.stdin is not None
        number = self._interrupts.pop(0) if len(self._interrupts) > 1 else self._interrupts[0]
        with contextlib.suppress(OSError):  # it has ended
            os.write(self._process.stdin.fileno(), bytes([number]))


def write(name: str, text: str) -> None:
    """Write a job's output to `sys.stdout` or `sys.stderr`, given by name."""
    stream = getattr(sys, name)  # in a notebook, that of the running cell
    if stream is not None:
        stream.write(text)
        stream.flush()
