"""The Ray actor that starts the workers on its node."""

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

# Environment variables that replace ssh for mpirun: Open MPI 5; Open MPI 4; MPICH and Intel MPI.
_AGENT = ("PRTE_MCA_plm_ssh_agent", "OMPI_MCA_plm_rsh_agent", "HYDRA_LAUNCHER_EXEC")
# Let the first node start the daemons on all nodes: the others do not have the agent.
_NO_TREE = ("PRTE_MCA_plm_ssh_no_tree_spawn", "OMPI_MCA_plm_rsh_no_tree_spawn")
# Removes a folder when its stdin closes, at the actor's end. Ray kills an actor's children, but not grandchildren.
_REMOVER = 'exec 3<&0; (cat <&3 > /dev/null; rm -rf -- "$0") &'


class Reserved:
    """Holds the GPUs that Ray has reserved for one worker."""

    def gpus(self) -> list[str]:
        """Return their ids, in the form that `CUDA_VISIBLE_DEVICES` takes."""
        import ray

        return list(map(str, ray.get_runtime_context().get_accelerator_ids()["GPU"]))


class Node(Reserved):
    """Starts the launcher, or a daemon of mpirun, on its node.

    Args:
        path: String. A folder to create for the call and its results. Nodes with a common file system share it.
        cpus: Int. CPUs per worker.
    """

    NAMESPACE: ClassVar[str] = "easyscale"

    def __init__(self, path: str, cpus: int):
        os.environ.update(thread_settings(os.environ, cpus, rank=0))  # else threads would spread over all cores
        os.makedirs(path, 0o700, exist_ok=True)
        self._remover = subprocess.Popen(["sh", "-c", _REMOVER, path], stdin=subprocess.PIPE, start_new_session=True)
        self._remover.wait()
        self._folder = Folder(path)
        self._job: Job | None = None

    @staticmethod
    def name_of(token: str, address: str) -> str:
        """Return the name by which the agent finds the actor on a node."""
        return f"{token} on {address}"

    def ready(self) -> None:
        """Do nothing: returns when the actor has started."""

    def see(self, gpus: list[str]) -> None:
        """Make these GPUs visible to the workers of this node; each takes its share."""
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)

    def give(self, call: tuple) -> None:
        """Write the call for the workers, with this process's `sys.path` and working directory."""
        path = list(map(os.path.abspath, sys.path))
        self._folder.give(Call(*call)._replace(path=path, directory=os.getcwd()))

    def check(self, line: list[str]) -> None:
        """Check these options of `easyscale launch`; raise its errors."""
        of_launch.planned(line, WORKER)

    def show(self, line: list[str], token: str) -> Iterator[tuple[str, str]]:
        """Start the launcher; yield its output and that of the workers until they end."""
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
        """Run a command of mpirun's on this node; return its exit code and stderr.

        As for ssh, the command is a line for a shell.
        """
        no, pipe = subprocess.DEVNULL, subprocess.PIPE
        done = subprocess.run(command, shell=True, stdin=no, stdout=no, stderr=pipe)
        return done.returncode, done.stderr.decode(errors="replace")

    def interrupt(self) -> None:
        """Interrupt the workers as Ctrl-C does; a second call ends them at once."""
        if self._job is not None:
            self._job.interrupt()

    def ending(self) -> tuple[int, str]:
        """Return the exit code of the launcher and the end of its stderr."""
        assert self._job is not None  # `show` has been called
        return self._job.wait(), self._job.errors

    def outcome(self) -> tuple[list[tuple], bytes | None]:
        """Return the function's failures on workers of this node, and its pickled result, if any."""
        return list(map(tuple, self._folder.failures)), self._folder.result

    def close(self) -> None:
        """Remove the folder."""
        self._remover.communicate()
        shutil.rmtree(str(self._folder), ignore_errors=True)
