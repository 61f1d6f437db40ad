"""What an actor of Ray does for the workers on its node."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from easyscale import run_module
from easyscale.cli.launch.worker import thread_settings
from easyscale.running import options as of_launch
from easyscale.running.folder import Call, Folder
from easyscale.running.job import WORKER, Job

__all__ = ["Node", "Reserved"]

# How mpirun is told what to start in the place of ssh: that of Open MPI 5 and 4, and that of MPICH and Intel MPI.
_AGENT = ("PRTE_MCA_plm_ssh_agent", "OMPI_MCA_plm_rsh_agent", "HYDRA_LAUNCHER_EXEC")
# The first node starts the daemons on all others: those know nothing of the agent.
_NO_TREE = ("PRTE_MCA_plm_ssh_no_tree_spawn", "OMPI_MCA_plm_rsh_no_tree_spawn")
# Removes a folder at the end of its input, which is that of the actor. Of an actor Ray kills the children, not theirs.
_REMOVER = 'exec 3<&0; (cat <&3 > /dev/null; rm -rf -- "$0") &'


class Reserved:
    """Has the GPUs that Ray has reserved for one worker."""

    def gpus(self) -> list[str]:
        """Return them, as `CUDA_VISIBLE_DEVICES` has them."""
        import ray

        return list(map(str, ray.get_runtime_context().get_accelerator_ids()["GPU"]))


class Node(Reserved):
    """Starts workers, or a daemon of mpirun that does, on its node.

    Args:
        path: String. A folder to make, for what workers are to do. Nodes with one file system have it in common.
        cpus: Int. The CPUs of each worker.
    """

    NAMESPACE: ClassVar[str] = "easyscale"

    def __init__(self, path: str, cpus: int):
        os.environ.update(thread_settings(os.environ, cpus, rank=0))  # else they would share all cores of the node
        os.makedirs(path, 0o700, exist_ok=True)
        self._remover = subprocess.Popen(["sh", "-c", _REMOVER, path], stdin=subprocess.PIPE, start_new_session=True)
        self._remover.wait()
        self._folder = Folder(path)
        self._job: Job | None = None

    @staticmethod
    def name_of(token: str, address: str) -> str:
        """Return by what name the agent finds the actor on a node."""
        return f"{token} on {address}"

    def ready(self) -> None:
        """Return when the actor is there."""

    def see(self, gpus: list[str]) -> None:
        """Let the workers of this node see these GPUs; each takes its share."""
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)

    def give(self, call: tuple) -> None:
        """Write what workers are to do. They look for modules where this process does."""
        path = list(map(os.path.abspath, sys.path))
        self._folder.give(Call(*call)._replace(path=path, directory=os.getcwd()))

    def check(self, line: list[str]) -> None:
        """Raise what `easyscale launch` has against these options."""
        of_launch.planned(line, WORKER)

    def show(self, line: list[str], token: str) -> Iterator[tuple[str, str]]:
        """Start the launcher; yield what it and the workers write until they end."""
        with Job(self._folder, line, self._variables(token)) as self._job:
            yield from self._job.output()

    def _variables(self, token: str) -> dict[str, str]:
        import ray

        agent = Path(str(self._folder), "agent")
        command = run_module.command("easyscale.integrations.ray.agent", token)
        agent.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
        agent.chmod(0o700)
        variables = dict.fromkeys(_AGENT, str(agent)) | dict.fromkeys(_NO_TREE, "1") | {"HYDRA_LAUNCHER": "ssh"}
        return variables | {"RAY_ADDRESS": ray.get_runtime_context().gcs_address}

    def execute(self, command: str) -> tuple[int, str]:
        """Run what mpirun wants to have run on this node; return its exit code and what it has written to stderr.

        As for ssh, that is a line for a shell.
        """
        no, pipe = subprocess.DEVNULL, subprocess.PIPE
        done = subprocess.run(command, shell=True, stdin=no, stdout=no, stderr=pipe)
        return done.returncode, done.stderr.decode(errors="replace")

    def interrupt(self) -> None:
        """Have the workers end as by Ctrl-C; at once if they were asked to before."""
        if self._job is not None:
            self._job.interrupt()

    def ending(self) -> tuple[int, str]:
        """Return the exit code of the launcher, and what was written to stderr last."""
        assert self._job is not None  # `show` has been called
        return self._job.wait(), self._job.errors

    def outcome(self) -> tuple[list[tuple], bytes | None]:
        """Return what the function has raised on workers of this node, and what it has returned."""
        return list(map(tuple, self._folder.failures)), self._folder.result

    def close(self) -> None:
        """Remove the folder."""
        self._remover.communicate()
        shutil.rmtree(str(self._folder), ignore_errors=True)
