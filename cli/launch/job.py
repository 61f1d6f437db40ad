"""Runs mpirun: shows the ranks' output, passes signals on, and makes sure that no rank is left behind."""

import contextlib
import os
import selectors
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from easyscale import run_module
from easyscale.cli.launch import leftovers, shared_memory
from easyscale.cli.launch.ending import Ending
from easyscale.cli.launch.janitor import Janitor
from easyscale.cli.launch.loopback import PIPE, Loopback
from easyscale.cli.launch.membership import Membership, Process
from easyscale.cli.launch.messages import decode
from easyscale.cli.launch.mpirun import Mpirun
from easyscale.cli.launch.mpirun_output import MpirunOutput
from easyscale.cli.launch.output import Screen
from easyscale.cli.launch.runtimes import Runtime
from easyscale.cli.launch.shutdown import Shutdown
from easyscale.cli.launch.signals import caught
from easyscale.cli.launch.stalls import Stalls
from easyscale.cli.launch.streams import Lines, Streams, read
from easyscale.cli.launch.supervisor import Supervisor
from easyscale.errors import tell
from easyscale.settings import RESTART, STALLED, Settings

__all__ = ["Job", "run", "worker_command"]

_DRAIN = 2.0  # seconds to keep reading after the end, from processes that ranks have left behind
_LAST_WORDS = 2.0  # seconds for the output's reader to take the rest, if the job was asked to end
_LONGEST_PAUSE = 30.0  # seconds before a failed job is restarted
SEPARATE = (
    "each of {size} ranks has run the script by itself: `fit()` must have the callback "
    "`easyscale.callbacks.Distribute()` to train one model on all of them. Start a script as it is by "
    "`easyscale launch --auto`; if it is meant so, call `easyscale.rank()`"
)


def worker_command(arguments: list[str]) -> list[str]:
    """Return the command line of a worker, which runs `python` with these `arguments`."""
    return run_module.command("easyscale.cli.launch.worker", *arguments)


class Job:
    """One run of all ranks, from the start of mpirun to its exit code.

    It reads what mpirun and the ranks write. Output for the user goes to the `Screen`, messages of the ranks' workers
    go to the `Supervisor`. `Shutdown` ends the job.

    Args:
        runtime: `Runtime`. Parses what mpirun writes.
        command: The command line of mpirun.
        screen: `Screen`. Shows the output.
        on_this_host: Bool. Whether all ranks run on this host.
        membership: `Membership`. The members of the job, and whether ranks go on without others. Defaults to `None`:
            all are workers, and all must go on.
        stalls: `Stalls`. Detects ranks that wait too long for others. Defaults to `None`: they may wait forever.
        processes: Int. Number of processes that mpirun starts on this host. Defaults to 1: no memory is shared.
        settings: `Settings`. The settings of ranks on this host. Defaults to `None`: those in the command.
        environment: Additional environment variables for the ranks. Defaults to none.

    Attributes:
        was_asked_to_end: Bool. Whether a signal has asked the job to end.
    """

    def __init__(
        self,
        runtime: Runtime,
        command: list[str],
        screen: Screen,
        on_this_host: bool,
        membership: Membership | None = None,
        stalls: Stalls | None = None,
        processes: int = 1,
        settings: Settings | None = None,
        environment: Mapping[str, str] | None = None,
    ):
        self._runtime, self._screen, self._variables = runtime, screen, dict(environment or {})
        self._on_this_host, self._processes = on_this_host, processes
        self._membership, self._stalls = membership or Membership(), stalls or Stalls(0, 0)
        self._settings = settings or Settings()
        self._mpirun = Mpirun(command, reaches_others=runtime.passes_on and not on_this_host)
        self._shutdown = Shutdown(self._mpirun)
        self._supervisor = Supervisor(self._membership, self._stalls, self._shutdown, screen.say, on_this_host)
        self._pipe: str | None = None  # where mpirun waits before it answers
        self._readers: dict[str, dict[int, Callable[[int], None]]] = {"stdout": {}, "stderr": {}}
        self._output = MpirunOutput(runtime, self._membership.has_begun, self._hear_first, screen.feed)

    def run(self) -> int:
        """Run the job; return the exit code: the script's, or 128 plus the signal that ended it.

        Raises:
            LaunchError: If there is too little shared memory, or another user has connected to mpirun.
        """
        self._streams = Streams(self._screen.terminals)
        with contextlib.ExitStack() as stack:
            self._selector = stack.enter_context(selectors.DefaultSelector())
            stack.enter_context(contextlib.closing(self._streams))
            wakeup = stack.enter_context(caught(self._shutdown.take_signal, self._streams.resize))
            self._selector.register(wakeup, selectors.EVENT_READ, lambda file: wakeup.recv(4096))
            self._screen.watch(self._selector)
            stack.callback(self._screen.watch, None)
            folder = self._folder(stack)
            janitor = Janitor(folder, self._streams.name)
            stack.callback(janitor.dismiss)
            pid = self._mpirun.start(self._environment(folder))
            janitor.watch(pid)
            pipe = None if self._pipe is None or not os.path.exists(self._pipe) else self._pipe
            self._loopback = Loopback(self._selector, pid, pipe) if self._on_this_host else None
            try:
                self._selector.register(self._streams.socket, selectors.EVENT_READ, self._on_rank)
                for stream, file in self._mpirun.files.items():
                    self._watch_mpirun(file, stream)
                self._loop()
            finally:
                self._shutdown.kill()
                if self._loopback is not None:
                    self._loopback.close()
                    leftovers.end_marked(self._streams.name)
        self._screen.end()
        code = self._exit_code()
        self._screen.finish(_LAST_WORDS if self.was_asked_to_end else None)
        return code

    @property
    def was_asked_to_end(self) -> bool:
        return bool(self._shutdown.signals)

    def _folder(self, stack: contextlib.ExitStack) -> str | None:
        """Create the folder for shared memory, if `/dev/shm` can be used."""
        if not (self._on_this_host and os.access(shared_memory.FOLDER, os.W_OK)):
            return None
        if self._processes > 1:
            shared_memory.check(self._processes)
        name = f"easyscale-{os.getpid()}-"
        folder = tempfile.TemporaryDirectory(prefix=name, dir=shared_memory.FOLDER, ignore_cleanup_errors=True)
        return stack.enter_context(folder)

    def _environment(self, folder: str | None) -> dict[str, str]:
        told = replace(self._settings, output=self._streams.name)
        found = self._runtime.environment() | self._variables | told.variables()
        if not folder:
            return found
        segment = shared_memory.segment(self._processes)
        self._pipe = os.path.join(folder, PIPE)
        if waits := self._runtime.wait_to_listen(self._pipe):
            os.mkfifo(self._pipe, 0o600)
        found |= waits
        return found | self._runtime.stay_on_this_host() | self._runtime.keep_shared_memory_in(folder, segment)

    def _loop(self) -> None:
        ended = None
        while True:
            is_starting = self._loopback is not None and self._loopback.is_starting
            events = self._selector.select(0.05 if ended else 0.001 if is_starting else 0.25)
            if self._loopback is not None and is_starting:
                self._loopback.look()
            for key, _ in events:
                key.data(key.fd)
            self._screen.tick()
            self._look_for_lost_output()
            self._supervisor.tick()
            if self._shutdown.signals:
                self._screen.hurry()
            is_held_up = self._hold_up()
            now = time.monotonic()
            if ended is None and self._mpirun.has_ended:
                ended = now
                self._shutdown.kill()  # ranks that mpirun has left behind, if it was killed itself
            elif ended is not None and is_held_up:
                ended = now
            elif ended is not None and (not events or now - ended > _DRAIN):
                return
            self._shutdown.tick()

    # Reading.

    def _hold_up(self) -> bool:
        """Stop reading for a stream whose reader has stalled; return whether there is such a stream."""
        is_held_up = False
        for stream, readers in self._readers.items():
            is_full = self._screen.is_full(stream)
            is_held_up |= is_full
            for file, on_data in readers.items():
                if is_full and file in self._selector.get_map():
                    self._selector.unregister(file)
                elif not is_full and file not in self._selector.get_map():
                    self._selector.register(file, selectors.EVENT_READ, on_data)
        return is_held_up

    def _watch_mpirun(self, file: int, stream: str) -> None:
        def on_data(file: int) -> None:
            data = read(file)
            if not data:
                self._forget(file, stream)
            self._output.feed(stream, data)

        self._readers[stream][file] = on_data

    def _watch_rank(self, file: int, rank: int, stream: str) -> None:
        def on_data(file: int) -> None:
            data = read(file)
            if not data:
                self._forget(file, stream)
            self._screen.feed(rank, stream, data)
            if not data:
                os.close(file)

        self._readers[stream][file] = on_data

    def _forget(self, file: int, stream: str) -> None:
        del self._readers[stream][file]
        self._selector.unregister(file)

    def _watch_worker(self, connection: socket.socket, process: Process) -> None:
        lines = Lines()

        def on_data(_: int) -> None:
            data = b""
            with contextlib.suppress(OSError):
                data = connection.recv(1 << 16)
            if not data:
                self._selector.unregister(connection)
                connection.close()
                self._supervisor.lose(process)
            for line in lines.feed(data):
                self._hear(process, line)

        self._selector.register(connection, selectors.EVENT_READ, on_data)

    def _on_rank(self, _: int) -> None:
        if self._loopback is not None and self._loopback.is_starting:
            self._loopback.settle(has_script_begun=False)
        started = self._streams.accept()
        if started is not None:
            process = self._supervisor.begin(started)
            if not self._membership.is_spare(started.rank):
                self._shutdown.ranks.append(started)
            for stream, file in started.files.items():
                self._watch_rank(file, started.rank, stream)
            self._watch_worker(started.connection, process)

    def _hear_first(self, rank: int, line: str) -> None:
        """Handle a line that a rank's worker sends through mpirun: from another host, where no rank is replaced."""
        if self._loopback is not None and self._loopback.is_starting:
            self._loopback.settle(has_script_begun=True)
        self._hear(Process(rank), line)

    def _hear(self, process: Process, line: bytes | str) -> None:
        message = decode(line)
        if message is not None:
            self._supervisor.hear(process, message)

    def _look_for_lost_output(self) -> None:
        error = self._screen.lost()
        if isinstance(error, BrokenPipeError):  # the reader of our output is gone
            if signal.SIGPIPE not in self._shutdown.signals:
                self._shutdown.take_signal(signal.SIGPIPE)
        elif error is not None:
            self._screen.say(f"easyscale: output is lost from here on, and the job goes on: {error.strerror}")

    # The end.

    def _exit_code(self) -> int:
        code, said, endings = self._mpirun.wait(), self._output.said, self._supervisor.endings
        if self._shutdown.signals:
            return RESTART if endings.asks_for_restart else 128 + self._shutdown.signals[0]
        if self._supervisor.is_stalled:
            whom = "" if self._stalls.culprit is None else f" for rank {self._stalls.culprit}"
            self._screen.say(f"easyscale: the job was ended because ranks have waited{whom} for too long")
            return STALLED
        if not self._on_this_host and self._membership.hosts and not endings.ends_job:  # mpirun may report success
            self._say_lost_host(said)
            return 1  # mpirun returns 0, or a code of its own
        if endings.is_success and (code == 0 or self._membership.is_over):
            apart = self._supervisor.beginning.stayed_apart
            if apart > 1 and not self._screen.has_shown(b"trains a model of its own"):
                self._screen.say(f"easyscale: {SEPARATE.format(size=apart)}")
            return 0
        cause = endings.cause(self._runtime.ending(said))
        if said and cause is None or not (self._shutdown.ranks or self._output.has_forwarded):
            self._screen.say(said)
        if cause is None and (host := self._runtime.unreachable_host(said)):
            self._screen.say(
                f"easyscale: each host must be one that mpirun can log in to. Received: {host}, which it cannot. "
                f"See that `ssh {host} true` works and asks for nothing"
            )
            return 1
        if cause is None or not (cause.is_failure or cause.is_early):
            cause = Ending(signal=-code) if code < 0 else Ending(code=code)
        if cause.signal:
            self._screen.show_hidden(cause.rank)
        told = cause.describe(self._membership.has_begun(cause.rank), self._membership.workers)
        self._screen.say(f"easyscale: {told}")
        return cause.exit_code

    def _say_lost_host(self, said: str) -> None:
        """Report the host that no longer answers: its ranks have not reported their end."""
        hosts = self._membership.hosts
        lost = self._runtime.lost_host(said) or next(iter(hosts.values()))
        ranks = [str(rank) for rank, host in sorted(hosts.items()) if host == lost]
        whom = f"rank{'s' * (len(ranks) > 1)} {', '.join(ranks)}"
        self._screen.say(f"easyscale: host {lost} does not answer any more, and with it {whom}")


def run(make: Callable[[bool], Job], restarts: int) -> int:
    """Run a job, and restart it up to `restarts` times if it fails; return the last exit code.

    `make` receives whether an earlier run has failed.

    The pause before a restart is 1 s at first and doubles each time, up to 30 s, because recovery may take time. A job
    that was asked to end is not restarted: that is up to whoever asked.
    """
    for number in range(1, restarts + 2):
        job = make(number > 1)
        code = job.run()
        if code == 0 or job.was_asked_to_end or number > restarts:
            break
        pause = min(2.0 ** min(number - 1, 10), _LONGEST_PAUSE)
        tell(f"easyscale: starts again in {pause:g} s ({number} of {restarts})")
        time.sleep(pause)
    return code
