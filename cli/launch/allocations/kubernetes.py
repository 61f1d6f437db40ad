"""Kubernetes: the launcher pod of an MPIJob or a TrainJob, for which Kubeflow writes a hostfile.

Both mount it at `/etc/mpi/hostfile`, and name it in a variable of the job's MPI; Trainer does so for Open MPI only.
"""

import os
import socket
from collections.abc import Mapping

from easyscale.cli.launch import hosts
from easyscale.cli.launch.allocations.allocation import Allocation
from easyscale.cli.launch.hosts import Host
from easyscale.errors import LaunchError

__all__ = ["Kubernetes"]

_FILES = ("OMPI_MCA_orte_default_hostfile", "I_MPI_HYDRA_HOST_FILE", "HYDRA_HOST_FILE")


class Kubernetes(Allocation):
    """The workers of an MPIJob (MPI Operator, v2beta1), or the nodes of a TrainJob (Kubeflow Trainer, v1alpha1).

    Args:
        path: String. The hostfile.
    """

    more = "Give the MPIJob more workers, or `slotsPerWorker`; a TrainJob `numNodes`, or `numProcPerNode`"

    def __init__(self, path: str):
        self._path = path

    @classmethod
    def detect(cls, environment: Mapping[str, str]) -> "Kubernetes | None":
        paths = [environment[name] for name in _FILES if os.path.exists(environment.get(name, ""))]
        return cls(paths[0]) if paths and "KUBERNETES_SERVICE_HOST" in environment else None

    def hosts(self) -> list[Host]:
        try:
            return hosts.read(self._path)
        except ValueError as error:
            raise LaunchError(str(error)) from None

    def is_here(self, host: Host) -> bool:
        # The launcher has its own pod, without ranks unless `runLauncherAsWorker` or `runLauncherAsNode` is set.
        return host.name.partition(".")[0] == socket.gethostname().partition(".")[0]
