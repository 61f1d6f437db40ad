"""A Slurm cluster on this machine: its real controller, and a daemon for each of several nodes. Needs root.

with Cluster(nodes=2, cpus=2) as cluster:
    job = cluster.submit(["#SBATCH --ntasks=3", "easyscale launch train.py"])
    print(cluster.wait(job))
"""

import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

__all__ = ["Cluster"]

_PROGRAMS = ("slurmctld", "slurmd", "sbatch", "scontrol", "scancel", "srun")
_CONFIGURATION = """\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/none
CredType=cred/none
SlurmUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/daemon.%n.pid
SlurmctldLogFile={folder}/controller.log
SlurmdLogFile={folder}/daemon.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
MinJobAge=300
KillWait=20
"""


class Cluster:
    """Nodes `node1`, `node2`, ... that are all this machine. They are gone at the end of the context.

    Args:
        nodes: Int. How many.
        cpus: Int. How many processors each says that it has.
    """

    def __init__(self, nodes: int, cpus: int):
        self._folder = Path(tempfile.mkdtemp(prefix="slurm-"))
        host, ports = socket.gethostname().partition(".")[0], _free_ports(1 + nodes)
        lines = [_CONFIGURATION.format(host=host, port=ports[0], folder=self._folder)]
        for number, port in enumerate(ports[1:], 1):
            lines += [f"NodeName=node{number} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus}\n"]
        lines += [f"PartitionName=all Nodes=node[1-{nodes}] Default=YES State=UP\n"]
        (self._folder / "state").mkdir()
        (self._folder / "slurm.conf").write_text("".join(lines))
        self.environment = {**os.environ, "SLURM_CONF": str(self._folder / "slurm.conf")}
        self._commands = [["slurmctld", "-D", "-c"], *(["slurmd", "-D", "-N", f"node{n}"] for n in range(1, nodes + 1))]
        self._daemons: list[subprocess.Popen] = []

    @staticmethod
    def is_possible() -> bool:
        """Return whether this user may have one, and Slurm is installed."""
        return os.geteuid() == 0 and all(shutil.which(program) for program in _PROGRAMS)

    def __enter__(self) -> "Cluster":
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        try:
            for command in self._commands:
                self._daemons.append(subprocess.Popen(command, env=self.environment, **quiet))
            end = time.monotonic() + 120
            while "idle" not in self._run("sinfo", "--noheader", "--format=%T"):
                if time.monotonic() > end:
                    raise TimeoutError((self._folder / "controller.log").read_text()[-2000:])
                time.sleep(0.2)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._run("scancel", "--user=root", "--signal=KILL", "--full")
        time.sleep(1)
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            try:
                daemon.wait(15)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def submit(self, lines: list[str], *options: str) -> int:
        """Submit a batch script of these lines; return the job's number."""
        script = self._folder / "script.sh"
        script.write_text("\n".join(["#!/bin/bash", f"#SBATCH --output={self._folder}/output.%j", *lines, ""]))
        said = self._run("sbatch", "--open-mode=append", *options, str(script))
        return int(re.search(r"Submitted batch job (\d+)", said)[1])

    def output(self, job: int) -> str:
        """Return what a job has written so far."""
        path = self._folder / f"output.{job}"
        return path.read_text(errors="replace") if path.exists() else ""

    def signal(self, job: int, name: str) -> None:
        """Send a signal to a job's batch script, as `--signal=B:` does before its time is over."""
        self._run("scancel", f"--signal={name}", "--batch", str(job))

    def go_on(self, job: int) -> None:
        """Let a job that was queued again begin at once, when it is: Slurm has it wait for two minutes."""
        end = time.monotonic() + 120
        while "JobState=PENDING" not in self._run("scontrol", "show", "job", str(job)) and time.monotonic() < end:
            time.sleep(0.2)
        time.sleep(5)  # its nodes are cleared until then
        self._run("scontrol", "update", f"JobId={job}", "StartTime=now")

    def wait(self, job: int, seconds: float = 120) -> str:
        """Return what a job has written, when it has ended for good."""
        end = time.monotonic() + seconds
        while not re.search(
            r"JobState=(COMPLETED|FAILED|CANCELLED|TIMEOUT)", self._run("scontrol", "show", "job", str(job))
        ):
            if time.monotonic() > end:
                raise TimeoutError(self.output(job)[-3000:])
            time.sleep(0.3)
        return self.output(job)

    def _run(self, *command: str) -> str:
        return subprocess.run(command, env=self.environment, capture_output=True, text=True).stdout


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [opened.getsockname()[1] for opened in sockets]
    for opened in sockets:
        opened.close()
    return ports
