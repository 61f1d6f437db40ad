"""Slurm: a batch script, or a shell started by `salloc`."""

import re
import subprocess
from collections.abc import Mapping

from easyscale.cli.launch.allocations.allocation import Allocation
from easyscale.cli.launch.hosts import Host, place
from easyscale.errors import LaunchError

__all__ = ["Slurm"]


class Slurm(Allocation):
    """The nodes of a job. Each runs one rank per task or, if no tasks were requested, one per processor.

    Args:
        nodes: String. The nodes, as Slurm writes them: `node[1-2]`.
        counts: String. The number of ranks on each node, as Slurm writes it: `2(x2),1`.
        tasks: Int. Total number of ranks. Defaults to `None`: as many as the nodes can run.
    """

    more = "Ask Slurm for more, such as `sbatch --ntasks`"

    def __init__(self, nodes: str, counts: str, tasks: int | None = None):
        self._nodes, self._counts, self._tasks = nodes, counts, tasks

    @classmethod
    def detect(cls, environment: Mapping[str, str]) -> "Slurm | None":
        # A process started by `srun` is already a rank, or one of several that would each start a job.
        if not environment.get("SLURM_JOB_NODELIST") or "SLURM_STEP_ID" in environment:
            return None
        tasks = environment.get("SLURM_NTASKS")
        counts = environment.get("SLURM_TASKS_PER_NODE" if tasks else "SLURM_JOB_CPUS_PER_NODE")
        return None if counts is None else cls(environment["SLURM_JOB_NODELIST"], counts, int(tasks) if tasks else None)

    def hosts(self) -> list[Host]:
        try:
            command = ["scontrol", "show", "hostnames", self._nodes]
            done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
            raise LaunchError(
                f"the nodes of a Slurm job must be known. Received: `scontrol show hostnames {self._nodes}`: "
                f"{lines[-1].rstrip('.')}. Name them by --hosts"
            ) from None
        hosts = [Host(*pair) for pair in zip(done.stdout.split(), _spread(self._counts), strict=True)]
        return hosts if self._tasks is None else place(hosts, self._tasks)


def _spread(counts: str) -> list[int]:
    """Expand Slurm's run-length encoded numbers.

    Example:

    >>> _spread("2(x3),1")
    [2, 2, 2, 1]
    """
    found = re.findall(r"(\d+)(?:\(x(\d+)\))?", counts)
    return [int(count) for count, times in found for _ in range(int(times or 1))]
