"""Kubernetes: the launcher pod of an MPIJob, for which the operator writes a file of the workers."""

import os
from collections.abc import Mapping

from easyscale.cli.launch import hosts
from easyscale.cli.launch.allocations.allocation import Allocation
from easyscale.cli.launch.hosts import Host
from easyscale.errors import LaunchError

__all__ = ["Kubernetes"]

_FILES = ("OMPI_MCA_orte_default_hostfile", "I_MPI_HYDRA_HOST_FILE", "HYDRA_HOST_FILE")


class Kubernetes(Allocation):
    """The workers of an MPIJob (Kubeflow's, v2beta1).

    Args:
        path: String. The file of hosts.
    """

    more = "Give the MPIJob more workers, or `slotsPerWorker`"

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
