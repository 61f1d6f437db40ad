"""The worker: mpirun starts one for each rank, with a script and its arguments, and it starts the script.

It does what only a process on the rank's own host can do: it takes the rank's share of the cores, redirects the rank's
output to the launcher, and reports how the script ended, because not every mpirun reports that or then ends the job.
Nothing heavy is imported, because every rank waits for it.
"""

import contextlib
import functools
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping

from easyscale import launchers, onednn, run_module
from easyscale.cli.launch import leftovers, loopback, rendezvous
from easyscale.cli.launch.containers import ControlGroup
from easyscale.cli.launch.messages import TO_END, Message
from easyscale.cli.launch.watch import Watch
from easyscale.launchers import Launcher
from easyscale.settings import Settings

__all__ = ["MARK", "cores_of_rank", "thread_settings", "threads_of_rank"]

MARK = "\x1eeasyscale "  # starts a stderr line for the launcher, from a rank that cannot reach its socket

_THREADS = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")


def cores_of_rank(cores: list[int], local_rank: int, local_size: int) -> list[int]:
    """Return the cores of one of `local_size` ranks: its own range, or all if there are fewer cores than ranks.

    Example:

    >>> cores_of_rank([0, 1, 2, 3, 4], 1, 2)
    [2, 3, 4]
    """
    if len(cores) < local_size:
        return cores
    return cores[len(cores) * local_rank // local_size : len(cores) * (local_rank + 1) // local_size]


def threads_of_rank(cores: int, quota: float | None, local_size: int) -> int:
    """Return the number of threads for one of `local_size` ranks.

    Args:
        cores: Int. Number of cores for all of them.
        quota: Float. CPU limit in cores, in a container that may see more of them. `None`: no limit.
        local_size: Int. Number of ranks.

    Example:

    >>> threads_of_rank(64, 4.0, 2)
    2
    """
    return max(1, int(cores if quota is None else min(cores, quota)) // local_size)


def thread_settings(environment: Mapping[str, str], threads: int, rank: int) -> dict[str, str]:
    """Return the variables that limit a rank to its `threads`, except those that the user has set."""
    wanted = dict.fromkeys(_THREADS, str(threads))
    # At least two: one sends the last layers' gradients while the other computes those of the first layers.
    wanted["TF_NUM_INTEROP_THREADS"] = str(max(2, threads))
    wanted["PYTHONUNBUFFERED"] = "1"  # output is streamed without delay
    if rank > 0:
        wanted["TF_CPP_MIN_LOG_LEVEL"] = "1"  # one rank is enough to show what TensorFlow says about the machine
    return {name: value for name, value in wanted.items() if name not in environment}


def _take_cores(launcher: Launcher | None, spares: int = 0, is_spare: bool = False) -> int:
    """Bind this process to the rank's share of the cores; return the number of threads for it.

    Args:
        launcher: `Launcher`. The launcher that started this rank, which knows its local rank and size.
        spares: Int. Number of spares on this host. Defaults to 0.
        is_spare: Bool. Whether this is a spare, which gets its share when it replaces a rank. Defaults to `False`.
    """
    cores, quota = sorted(os.sched_getaffinity(0)), ControlGroup().cores
    if launcher is None or launcher.local_rank is None or launcher.local_size is None:
        return threads_of_rank(len(cores), quota, 1)
    local_size = launcher.local_size - spares
    if not is_spare:
        os.sched_setaffinity(0, cores_of_rank(cores, launcher.local_rank, local_size))
    return threads_of_rank(len(cores), quota, local_size)


def _take_output(name: str, rank: int, is_spare: bool = False) -> socket.socket:
    """Redirect output from mpirun to the launcher; return the connection.

    Args:
        name: String. Name of the launcher's socket.
        rank: Int. The number of this rank.
        is_spare: Bool. Whether this is a spare, which still writes to mpirun. Defaults to `False`.

    Raises:
        OSError: If the launcher cannot be reached, as from other hosts.
    """
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(10)
    connection.connect(f"\0{name}")
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    if int.from_bytes(peer[4:8], sys.byteorder) != os.getuid():
        raise PermissionError("the launcher must be of this user")
    connection.sendall(f"{rank}\n".encode())
    files = socket.recv_fds(connection, 1, 2)[1]
    for file, standard in zip(files, (1, 2), strict=True):
        if not is_spare:
            os.dup2(file, standard)
        os.close(file)
    return connection


def _start(
    command: list[str],
    by_lines: bool,
    watch: Watch,
    on_word: Callable[[int, str], None] | None = None,
    orders: socket.socket | None = None,
) -> int:
    """Start the script in this process group; return its wait status, as in `os.waitpid`.

    Args:
        command: What to start.
        by_lines: Whether its output goes through this process, which writes whole lines: some versions of mpirun mark
            every piece of output as if it were a line.
        watch: `Watch`. Watches it meanwhile.
        on_word: Function. Called with the script's process id and each line that it writes to the socket
            `EASYSCALE_SPARE`. Defaults to `None`: there is no such socket.
        orders: Socket. Its lines are forwarded to that other one. Defaults to `None`: the script begins at once.
    """
    pair = socket.socketpair() if on_word else None  # this process's end, and the script's
    pipes = {standard: os.pipe() for standard in (1, 2)} if by_lines else {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda number, frame: None)  # left to the script, which gets it too; `exec` undoes this
    signal.signal(TO_END, signal.SIG_IGN)  # for this process only; the script gets a SIGTERM
    pid = os.fork()
    if pid == 0:
        leftovers.die_with_parent()
        watch.give()
        for standard, (_, writer) in pipes.items():
            os.dup2(writer, standard)
        if pair is not None:
            pair[1].set_inheritable(True)
            os.environ.update(Settings(spare=pair[1].fileno()).variables())
        os.execv(command[0], command)
    for _, writer in pipes.values():
        os.close(writer)
    signal.signal(TO_END, lambda number, frame: os.kill(pid, signal.SIGTERM))
    if os.getpgrp() != os.getpid():  # the script does not get a signal to this process: forward it
        signal.signal(signal.SIGTERM, lambda number, frame: os.kill(pid, number))
    targets: dict[int, Callable[[bytes], None]] = {}
    for standard, (reader, _) in pipes.items():
        targets[reader] = functools.partial(_write, standard)
    if on_word and pair is not None:
        control, words = pair
        words.close()

        def tell(data: bytes) -> None:
            for line in data.decode().splitlines():
                on_word(pid, line)

        targets[control.fileno()] = tell
        if orders is None:
            control.sendall(b"begin\n")
        else:
            targets[orders.fileno()] = functools.partial(_pass_on, control)
    return _attend(pid, targets, watch)


def _write(file: int, data: bytes) -> None:
    out = memoryview(data)
    while out:
        out = out[os.write(file, out) :]


def _pass_on(to: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):  # it has ended
        to.sendall(data)


def _attend(pid: int, targets: dict[int, Callable[[bytes], None]], watch: Watch) -> int:
    """Watch a process until it ends, and pass data from files to functions, in whole lines.

    Return its wait status.
    """
    partial = dict.fromkeys(targets, b"")
    status = None
    end = os.pidfd_open(pid)  # readable when the process has ended
    while partial or status is None:
        pause = 0.1 if status is not None else watch.interval
        ready = select.select([*partial, *([end] if status is None else [])], [], [], pause)[0]
        watch.look(pid)
        for file in set(ready) - {end}:
            data = b""
            with contextlib.suppress(ConnectionError):
                data = os.read(file, 1 << 16)
            lines, newline, rest = (partial[file] + data).rpartition(b"\n")
            targets[file](lines + newline if data else partial.pop(file))
            if data:
                partial[file] = rest
        if status is None:
            ended, found = os.waitpid(pid, os.WNOHANG)
            status = found if ended else None
            leftovers.reap(but=pid)
        elif not ready:  # another process keeps the files open
            break
    return status


def _end_like(status: int) -> None:
    """End this process the way the script ended."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # one core dump is enough
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status))


def main() -> None:
    launcher = launchers.detect()
    rank = launcher.rank if launcher else 0
    leftovers.die_with_parent()  # if mpirun is killed, nobody else would end this rank
    leftovers.adopt()
    if os.environ.get(loopback.REPORT, "").endswith(loopback.PIPE):  # for mpirun only
        del os.environ[loopback.REPORT]
    told = Settings.read()
    spares, output = told.spares, told.output
    is_spare = rank >= (launcher.size if launcher else 0) - spares if spares else False
    connection = None
    with contextlib.suppress(OSError):
        connection = _take_output(output, rank, is_spare) if output else None
    cores = sorted(os.sched_getaffinity(0))
    os.environ.update(thread_settings(os.environ, _take_cores(launcher, spares, is_spare), rank))
    os.environ.update(onednn.variables(told.onednn, os.environ))
    os.environ.update({} if is_spare else rendezvous.of_rank(launcher, os.environ))

    def say(message: Message) -> None:
        line = json.dumps(message)
        with contextlib.suppress(OSError):
            if connection is not None:
                connection.sendall(f"{line}\n".encode())
            elif output and not is_spare:
                os.write(2, f"{MARK}{line}\n".encode())

    local_size = (launcher and launcher.local_size) or 1

    def on_word(pid: int, line: str) -> None:
        nonlocal connection
        word, _, number = line.partition(" ")
        if word == "replaces":  # from now on it is that rank
            watch.wake()
            os.sched_setaffinity(pid, cores_of_rank(cores, int(number), local_size - spares))
            if connection is not None:
                say({"kind": "called"})
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            with contextlib.suppress(OSError):
                connection = _take_output(output, int(number)) if output else connection
        elif word == "joined":
            say({"kind": "joined"})

    host = os.uname().nodename
    say({"kind": "started", "host": host})
    watch = Watch(told.stall_timeout, say, sleeps=is_spare)
    if is_spare:
        command = run_module.command("easyscale.elastic.standby", *sys.argv[1:])
        status = _start(command, by_lines=True, watch=watch, on_word=on_word, orders=connection)
    else:
        status = _start([sys.executable, *sys.argv[1:]], by_lines=connection is None, watch=watch)
    say({"kind": "ended", "host": host, "status": status, "when": time.monotonic_ns(), **watch.farewell})
    leftovers.end_children()
    _end_like(status)


if __name__ == "__main__":
    main()
