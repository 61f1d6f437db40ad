"""Processes that are measured in turns: one group of them works, the others sleep in a read from a socket.

Two groups that never run at the same time, but one after the other again and again, meet the same of what else the
machine does. Only Python's standard library: every stack that is measured imports this file.

A process that is measured ends in `serve(work)`. The one that measures starts groups and gives them turns:

    with Group("gloo", [[python, "peers/gloo.py"]] * 2) as gloo, Group(...) as other:
        for _ in range(5):
            seconds = gloo.turn(bytes=4000), other.turn(bytes=4000)
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["Group", "serve"]

_SOCKET, _RANK = "BENCHMARK_SOCKET", "BENCHMARK_RANK"
_START, _TURN = 300, 900  # seconds, at most


def serve(work: Callable[..., list[float]], rank: int | None = None) -> None:
    """Call `work(**order)` for each order that comes, and answer with what it returns, until no more come.

    Args:
        work: Callable that returns seconds.
        rank: Int. The number of this process. Defaults to `None`: that of its command.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ[_SOCKET])
        with connection.makefile("rw") as file:
            print(os.environ[_RANK] if rank is None else rank, file=file, flush=True)
            for line in file:
                print(json.dumps(work(**json.loads(line))), file=file, flush=True)


class Group:
    """Processes that work together, and sleep while others work.

    Args:
        name: String. For errors.
        commands: A command for each process, or one that starts them all.
        size: Int. How many processes there will be. Defaults to `None`: as many as commands.
        pinned: Bool. Whether each command has a core of its own. Defaults to `True`.
        environment: What each command gets beside the environment of this process, by its number. Defaults to nothing.

    Attributes:
        size: Int.
    """

    def __init__(
        self,
        name: str,
        commands: list[list[str]],
        size: int | None = None,
        pinned: bool = True,
        environment: Callable[[int], dict[str, str]] = lambda rank: {},
    ):
        self._name, self.size = name, size or len(commands)
        self._folder = tempfile.TemporaryDirectory(prefix="benchmark-")
        self._said = Path(self._folder.name, "said")
        path = str(Path(self._folder.name, "socket"))
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(path)
        self._server.listen(self.size)
        self._processes, self._files = [], {}
        cores = sorted(os.sched_getaffinity(0))
        with self._said.open("w") as said:
            for rank, command in enumerate(commands):
                own = {_SOCKET: path, _RANK: str(rank)}
                own_cores = {cores[rank % len(cores)]} if pinned else set(cores)
                process = subprocess.Popen(
                    command,
                    env={**os.environ, **environment(rank), **own},
                    stdout=said,
                    stderr=said,
                    start_new_session=True,
                    preexec_fn=lambda own_cores=own_cores: os.sched_setaffinity(0, own_cores),
                )
                self._processes.append(process)
        with self._killed_if_it_fails():
            self._meet()

    def _meet(self) -> None:
        end = time.monotonic() + _START
        self._server.settimeout(1)
        while len(self._files) < self.size:
            with contextlib.suppress(TimeoutError):
                connection, _ = self._server.accept()
                connection.settimeout(_TURN)
                file = connection.makefile("rw")
                self._files[int(file.readline())] = file, connection
            if time.monotonic() > end or any(process.poll() for process in self._processes):
                raise RuntimeError(f"{self._name}: {len(self._files)} of {self.size} processes came\n{self._tail()}")

    def turn(self, alone: bool = False, **order: object) -> list[list[float]]:
        """Have all processes do `order`; return what each measured.

        Args:
            alone: Bool. Whether only the first does it. Defaults to `False`.
            order: What `serve` passes to its function. Numbers and strings.
        """
        files = [self._files[rank][0] for rank in range(1 if alone else self.size)]
        with self._killed_if_it_fails():
            for file in files:
                print(json.dumps(order), file=file, flush=True)
            answers = [file.readline() for file in files]
            if not all(answers):
                self._await_an_end()  # its last words come after its connection is closed
                raise RuntimeError(f"{self._name}: a process ended in {order}\n{self._tail()}")
        return [json.loads(answer) for answer in answers]

    def _await_an_end(self) -> None:
        end = time.monotonic() + 5
        while all(process.poll() is None for process in self._processes) and time.monotonic() < end:
            time.sleep(0.01)

    def _tail(self) -> str:
        return "\n".join(self._said.read_text(errors="replace").splitlines()[-20:])

    @contextlib.contextmanager
    def _killed_if_it_fails(self):
        try:
            yield
        except BaseException:
            self._kill()
            raise

    def _kill(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, *_) -> None:
        for file, connection in self._files.values():
            file.close()
            connection.close()  # which ends `serve`
        self._server.close()
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
        self._kill()
        self._folder.cleanup()
