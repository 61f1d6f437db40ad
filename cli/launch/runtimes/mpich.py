"""The command line and the messages of MPICH's mpiexec, Hydra."""

import os
import re
from collections.abc import Mapping

from easyscale.cli.launch.ending import Ending
from easyscale.cli.launch.hosts import Host
from easyscale.cli.launch.runtimes.runtime import Runtime

__all__ = ["Mpich"]


class Mpich(Runtime):
    """MPICH."""

    sign = re.compile(r"HYDRA build details")

    @property
    def name(self) -> str:
        found = re.search(r"Version:\s*(\S+)", self.version)
        return f"MPICH {found[1]}" if found else super().name

    def command(
        self, ranks: int, start: list[str], hosts: list[Host], variables: Mapping[str, str], cores: int
    ) -> list[str]:
        line = self.options_line(variables)
        if hosts:
            line += ["-hosts", ",".join(map(str, hosts))]
        return [*line, "-n", str(ranks), *start]

    def options_line(self, variables: Mapping[str, str]) -> list[str]:
        line = [self.program, "-prepend-rank", "-print-all-exitcodes"]
        for name, value in variables.items():
            line += ["-genv", name, value]
        return line

    def stay_on_this_host(self) -> dict[str, str]:
        # For UCX or libfabric, whichever MPICH is built on: with these, ranks do not listen on TCP at all.
        wanted = {"UCX_TLS": "self,sm", "FI_PROVIDER": "shm"}
        return {name: value for name, value in wanted.items() if name not in os.environ}

    def tagged(self, line: str, stream: str) -> tuple[int, str, str] | None:
        match = re.match(r"\[(\d+)\] ", line)
        return (int(match[1]), stream, line[match.end() :]) if match else None

    def ending(self, said: str) -> Ending | None:
        # MPICH names a process, but not always the one that failed. Intel MPI also names those that it killed then.
        ranks = list(re.finditer(r"RANK (\d+) PID \d+ RUNNING AT (\S+)", said))
        rank = ranks[0] if len(ranks) == 1 else None
        killed = re.search(r"\(signal (\d+)\)|KILLED BY SIGNAL: (\d+)", said)
        code = re.search(r"EXIT CODE: (\d+)", said)
        if killed or code:
            return Ending(
                rank=int(rank[1]) if rank else None,
                host=rank[2] if rank else None,
                signal=int(killed[1] or killed[2]) if killed else None,
                code=int(code[1]) if code and not killed else None,
            )
        return self._listed(said)

    def _listed(self, said: str) -> Ending | None:
        """Parse the list of all wait statuses. It shows which rank failed if all are on one host and only one did."""
        match = re.search(r"Exit codes: \[([^\]:]+)(?::\d+)?\] ([\d,]+)\s*$", said, re.MULTILINE)
        if match is None:
            return None
        failed = [(rank, int(s)) for rank, s in enumerate(match[2].split(",")) if int(s)]
        if len(failed) != 1:
            return Ending()
        rank, status = failed[0]
        if os.WIFSIGNALED(status):
            return Ending(rank=rank, host=match[1], signal=os.WTERMSIG(status))
        return Ending(rank=rank, host=match[1], code=os.WEXITSTATUS(status))
