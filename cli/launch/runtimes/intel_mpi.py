"""The command line of Intel MPI's mpiexec, a derivative of MPICH's."""

import os
import re
from collections.abc import Mapping

from easyscale.cli.launch.hosts import Host, place
from easyscale.cli.launch.runtimes.mpich import Mpich

__all__ = ["IntelMpi"]


class IntelMpi(Mpich):
    """Intel MPI. Its `-hosts` does not support slots, so each host gets its own command."""

    sign = re.compile(r"Intel\(R\) MPI Library")

    def __init__(self, program: str, version: str):
        # `mpirun` is a shell script around this program that does not pass signals on.
        hydra = os.path.join(os.path.dirname(program), "mpiexec.hydra")
        super().__init__(hydra if os.access(hydra, os.X_OK) else program, version)

    def stay_on_this_host(self) -> dict[str, str]:
        return {} if "FI_TCP_IFACE" in os.environ else {"FI_TCP_IFACE": "lo"}

    def keep_shared_memory_in(self, folder: str, segment: int | None = None) -> dict[str, str]:
        return {"I_MPI_SHM_FILE_PREFIX_4K": folder}

    def command(
        self, ranks: int, start: list[str], hosts: list[Host], variables: Mapping[str, str], cores: int
    ) -> list[str]:
        line = self.options_line({"I_MPI_PIN": "0", **variables})
        if not hosts:
            return [*line, "-n", str(ranks), *start]
        parts = [["-host", host.name, "-n", str(host.slots), *start] for host in place(hosts, ranks)]
        return line + [word for part in parts for word in (":", *part)][1:]
