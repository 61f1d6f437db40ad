"""Processes that train many scripts: starting TensorFlow takes longer than a small `fit()`."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path

from other_backends import OTHERS

from fuzz.worker import Reply, Task

__all__ = ["Broken", "Job", "Pool"]

_START_SECONDS = 180.0
_OTHERS_SECONDS = 60.0  # that the others may take when one rank has failed, also on a machine with much else to do
_END_SECONDS = 15.0

TESTS = Path(__file__).parents[1]


class Broken(Exception):
    """A job does not answer any more: it hangs, or a rank has died, or has failed and left the others waiting.

    Attributes:
        kind: String. `"hang"`, `"death"` or `"error"`.
        replies: Dict. Rank -> `Reply`, of those that have replied.
        output: String. What the job has written since, with the stacks of ranks that hang.
    """

    def __init__(self, kind: str, replies: dict[int, Reply], output: str):
        super().__init__(kind)
        self.kind, self.replies, self.output = kind, replies, output


class Job:
    """A start of `easyscale launch`, or one process without EasyScale, that trains scripts until it is closed.

    Args:
        options: List of the options of `easyscale launch`; `None` for a process without EasyScale.
        limit: Float. Seconds that a script may take.
        variables: Dict. Environment variables. Defaults to `None`.
        backend: String. Of Keras. Defaults to `"tensorflow"`.

    Attributes:
        trained: List of the `Task`s so far.
        pids: List of the ranks' processes.
    """

    def __init__(
        self,
        options: Sequence[str] | None,
        limit: float,
        variables: Mapping[str, str] | None = None,
        backend: str = "tensorflow",
    ):
        self._limit, self.trained = limit, []
        self._folder = tempfile.TemporaryDirectory(prefix="fuzz-")
        self._log = open(os.path.join(self._folder.name, "log"), "w+b", buffering=0)  # noqa: SIM115
        address = os.path.join(self._folder.name, "socket")
        path = os.pathsep.join([str(TESTS), str(TESTS / "startup")])
        environment = {**os.environ, **(variables or {}), "PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "2"}
        environment |= {"TF_ENABLE_ONEDNN_OPTS": "0", "PYTHONUNBUFFERED": "1", "KERAS_BACKEND": backend}
        environment["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])  # mpirun's
        python = OTHERS[backend].python if backend in OTHERS else sys.executable
        if options is None:
            threads = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "2"}
            environment |= {"EASYSCALE_FUZZ_PLAIN": "1", **threads}
            command, ranks = [python, "-m", "fuzz.worker", address], 1
        else:
            environment.pop("EASYSCALE_FUZZ_PLAIN", None)
            environment |= {"EASYSCALE_FUZZ_AUTO": "1"} if "--auto" in options else {}
            command = [python, "-m", "easyscale", "launch", *options, "--stall-timeout", "0"]
            command += ["-m", "fuzz.worker", address]
            ranks = 1 if "in_graph" in options else int(options[options.index("-n") + 1])
            ranks += int(options[options.index("--servers") + 1]) if "--servers" in options else 0
        self._connections: dict[Connection, int] = {}
        self.pids: list[int] = []
        self._process = None
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen()
            listener.settimeout(1.0)
            self._process = subprocess.Popen(
                command,
                stdout=self._log,
                stderr=self._log,
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
            try:
                self._accept(listener, ranks)
            except BaseException:
                self.kill()
                raise

    def _accept(self, listener: socket.socket, ranks: int) -> None:
        end = time.monotonic() + _START_SECONDS
        while len(self._connections) < ranks:
            if self._process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"a job must start. Received: {self._output()[-3000:]}")
            with contextlib.suppress(TimeoutError):
                connection = Connection(listener.accept()[0].detach())
                rank, pid = connection.recv()
                self._connections[connection] = rank
                self.pids.append(pid)

    def train(self, task: Task) -> dict[int, Reply]:
        """Return rank -> `Reply`.

        Raises:
            Broken: If not all ranks reply. The job is over then.
        """
        self.trained.append(task)
        start = self._log.seek(0, os.SEEK_END)
        replies: dict[int, Reply] = {}
        end = time.monotonic() + self._limit
        try:
            for connection in self._connections:
                connection.send(task)
            while waiting := [
                connection for connection in self._connections if self._connections[connection] not in replies
            ]:
                ready = wait(waiting, max(0.0, end - time.monotonic()))
                if not ready:
                    raise TimeoutError
                for connection in ready:
                    replies[self._connections[connection]] = reply = connection.recv()
                    if reply.error:
                        end = min(end, time.monotonic() + _OTHERS_SECONDS)
        except (EOFError, OSError) as error:  # TimeoutError is one
            failed = any(reply.error for reply in replies.values())
            kind = "error" if failed else "hang" if isinstance(error, TimeoutError) else "death"
            if isinstance(error, TimeoutError):
                self._dump_stacks()
            else:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(_END_SECONDS)  # the launcher says what happened
            output = self._output(start)
            self.kill()
            raise Broken(kind, replies, output) from None
        return replies

    def _dump_stacks(self) -> None:
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)
        time.sleep(2.0)

    def _output(self, start: int = 0) -> str:
        self._log.seek(start)
        return self._log.read().decode(errors="replace")

    def kill(self) -> None:
        """End the job at once."""
        for connection in self._connections:
            connection.close()
        self._connections = {}
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._log.close()
        self._folder.cleanup()

    def close(self) -> None:
        """Let the job end by itself."""
        if not self._connections:
            return
        for connection in self._connections:
            connection.close()
        self._connections = {}
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
            self.pids = []
        self.kill()


class Pool:
    """Jobs by the options of their start: each is started when it is first needed, and again when it is broken.

    Several threads may train in it; each job trains one script at a time.

    Args:
        limit: Float. Seconds that a script may take.
        capacity: Int. After so many scripts a job is started anew.
        backend: String. Of Keras. Defaults to `"tensorflow"`.
    """

    def __init__(self, limit: float = 120.0, capacity: int = 150, backend: str = "tensorflow"):
        self._limit, self._capacity, self._backend = limit, capacity, backend
        self._jobs: dict[tuple | None, Job] = {}
        self._locks: dict[tuple | None, threading.Lock] = {}
        self._guard = threading.Lock()

    def train(
        self,
        options: Sequence[str] | None,
        task: Task,
        alone: bool = False,
        variables: Mapping[str, str] | None = None,
    ) -> tuple[dict[int, Reply], list[Task]]:
        """Return rank -> `Reply`, and what the job has trained so far.

        Args:
            options: List of the options of `easyscale launch`; `None` for a process without EasyScale.
            task: `Task`.
            alone: Bool. Whether nothing may have been trained before by the same processes. Defaults to `False`.
            variables: Dict. Environment variables of the ranks. Defaults to `None`.

        Raises:
            Broken: If not all ranks reply. It has the attribute `before`: what the job had trained.
        """
        key = options and (*options, *(variables or {}).items())
        with self._guard:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            job = self._jobs.get(key)
            if job is not None and (alone or len(job.trained) >= self._capacity):
                self._jobs.pop(key).close()
                job = None
            if job is None:
                job = self._jobs[key] = Job(options, self._limit, variables, self._backend)
            before = list(job.trained)
            try:
                return job.train(task), before
            except Broken as error:
                del self._jobs[key]
                error.before = before
                raise

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: object) -> None:
        for job in self._jobs.values():
            job.close()
        self._jobs = {}
