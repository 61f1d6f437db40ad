"""The plan of what `easyscale launch` starts, with all options validated and resolved."""

import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from easyscale import onednn
from easyscale.cli.launch import rendezvous
from easyscale.cli.launch.hosts import Host, place
from easyscale.errors import tell
from easyscale.settings import Settings, variable, without

if TYPE_CHECKING:
    from easyscale.cli.launch.job import Job
    from easyscale.cli.launch.logs import Logs
    from easyscale.cli.launch.runtimes import Runtime

__all__ = ["LaunchPlan"]


@dataclass(frozen=True)
class LaunchPlan:
    """The ranks of a job, and the command line that starts them.

    Args:
        settings: `Settings`. The ranks' settings.
        command: The command line, of Python or of mpirun.
        runtime: `Runtime`. The MPI that starts the ranks. Defaults to `None`: there is one rank, which needs none.
        workers: Int. Number of ranks that train; servers come after them. Defaults to `1`.
        hosts: The hosts of the ranks. Defaults to none: this host.
        restarts: Int. Maximum number of restarts if the job fails. Defaults to `0`.
        log_dir: String. Folder for logs of the ranks' output. Defaults to `None`: no logs.
        shown: The ranks whose output is shown. Defaults to `None`: all.
        on_those_left: Function. Takes the hosts that are left after a failure, and returns the plan to go on with them;
            raises `LaunchError` if they are too few. Defaults to `None`: all hosts are needed.

    Example:

    >>> print(LaunchPlan(Settings(exchange="ring"), command=("python", "my script.py")))
    EASYSCALE_EXCHANGE=ring python 'my script.py'
    """

    settings: Settings
    command: tuple[str, ...]
    runtime: "Runtime | None" = None
    workers: int = 1
    hosts: tuple[Host, ...] = ()
    restarts: int = 0
    log_dir: str | None = None
    shown: frozenset[int] | None = None
    on_those_left: "Callable[[list[Host]], LaunchPlan] | None" = None

    def __str__(self) -> str:
        """Return the command line for a shell."""
        shown = self._alone() if self.runtime is None else self.runtime.environment()
        return " ".join([f"{name}={shlex.quote(value)}" for name, value in shown.items()] + [shlex.join(self.command)])

    @property
    def ranks(self) -> int:
        return self.workers + self.settings.servers

    def run(self) -> int:
        """Start the job, and return its exit code. Without MPI, this process becomes the only rank."""
        if self.runtime is None:
            told = replace(self, settings=replace(self.settings, launched=os.getpid()))
            environment = {**os.environ, **rendezvous.meeting_place()}
            environment |= rendezvous.of_rank(None, environment)
            os.execve(self.command[0], self.command, {**without(environment), **told._alone()})
        from easyscale.cli.launch import job
        from easyscale.cli.launch.logs import Logs

        logs = None if self.log_dir is None else Logs(self.log_dir)
        return job.run(lambda again: (self._of_those_that_answer() if again else self)._job(logs), self.restarts)

    def _of_those_that_answer(self) -> "LaunchPlan":
        """Return the plan for the hosts that answer now, if the job may go on with fewer."""
        if self.runtime is None or self.on_those_left is None:
            return self
        from easyscale.cli.launch.reaching import answering

        environment = {variable("output"): "", **rendezvous.meeting_place(self.hosts)}  # mpirun passes these on
        left = answering(self.runtime, self.hosts, environment)
        if len(left) == len(self.hosts):
            return self
        found = self.on_those_left(left)
        lost = ", ".join(host.name for host in self.hosts if host not in left)
        line = f"easyscale: goes on with {found.workers} of {self.workers} workers, without {lost}"
        tell(line)
        return found

    def _alone(self) -> dict[str, str]:
        """Return the environment variables of a rank that no worker starts."""
        return self.settings.variables() | onednn.variables(self.settings.onednn, os.environ)

    def _job(self, logs: "Logs | None") -> "Job":
        from easyscale.cli.launch.job import Job
        from easyscale.cli.launch.membership import Membership
        from easyscale.cli.launch.output import Screen
        from easyscale.cli.launch.stalls import Stalls

        assert self.runtime is not None
        told = self.settings
        hosts = [host.name for host in place(list(self.hosts), self.ranks) for _ in range(host.slots)]
        needed = [0, *range(self.workers, self.ranks)] if told.servers else []
        return Job(
            self.runtime,
            list(self.command),
            Screen(logs=logs, shown=self.shown, hosts=hosts),
            on_this_host=not self.hosts,
            membership=Membership(self.workers, told.elastic, needed, has_spares=told.spares > 0),
            stalls=Stalls(told.stall_timeout, self.ranks),
            processes=self.ranks + told.spares,
            settings=told,
            environment=rendezvous.meeting_place(self.hosts),
        )
