"""The command line and the messages of Open MPI's mpirun, version 5 (PRRTE) and version 4 (ORTE)."""

import os
import pwd
import re
from collections.abc import Mapping

from easyscale.cli.launch.ending import Ending
from easyscale.cli.launch.hosts import Host
from easyscale.cli.launch.loopback import REPORT
from easyscale.cli.launch.messages import TO_END
from easyscale.cli.launch.rendezvous import PLACE
from easyscale.cli.launch.runtimes.runtime import Runtime
from easyscale.settings import variable

__all__ = ["OpenMpi"]

# TCP keepalive between mpirun's daemons: seconds of silence before the first probe, seconds between probes, and their
# number. After that the other host counts as lost, and both end. With the defaults that takes 8 minutes.
_KEEPALIVE = {"time": "4", "intvl": "1", "probes": "4"}


class OpenMpi(Runtime):
    """Open MPI. It does not bind ranks to cores: `easyscale.cli.launch.worker` does."""

    sign = re.compile(r"\(Open MPI\)\s+(\d+)")

    @property
    def _major(self) -> int:
        match = self.sign.search(self.version)
        assert match is not None  # else it is another kind of runtime
        return int(match[1])

    def command(
        self, ranks: int, start: list[str], hosts: list[Host], variables: Mapping[str, str], cores: int
    ) -> list[str]:
        line = [self.program, "-n", str(ranks), "--bind-to", "none"]
        line += ["--output", "tag"] if self._major >= 5 else ["--tag-output"]
        if os.geteuid() == 0:
            line.append("--allow-run-as-root")
        if hosts:
            line += ["--host", ",".join(map(str, hosts))]
            for name in (variable("output"), *PLACE):
                line += ["-x", name]
            for name, value in _KEEPALIVE.items():
                line += ["--prtemca" if self._major >= 5 else "--mca", f"oob_tcp_keepalive_{name}", value]
            if self.passes_on:
                line += ["--forward-signals", TO_END.name]
        elif ranks > cores:
            line.append("--oversubscribe")
        for name, value in variables.items():
            line += ["-x", f"{name}={value}"]
        return line + start

    @property
    def passes_on(self) -> bool:
        return self._major >= 5

    def elastic_flags(self) -> list[str]:
        return ["--with-ft", "ulfm"] if self._major >= 5 else super().elastic_flags()

    def environment(self) -> dict[str, str]:
        if "HOME" in os.environ:
            return {}
        try:
            return {"HOME": pwd.getpwuid(os.getuid()).pw_dir}
        except KeyError:  # a user id without a passwd entry, as in containers
            return {"HOME": "/"}

    def stay_on_this_host(self) -> dict[str, str]:
        # The TCP component listens on all networks, whichever it is told to use.
        wanted = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,sm" if self._major >= 5 else "self,vader"}
        return {name: value for name, value in wanted.items() if name not in os.environ}

    def wait_to_listen(self, pipe: str) -> dict[str, str]:
        # PMIx writes its port there, before it accepts connections.
        return {REPORT: pipe} if self._major >= 5 and REPORT not in os.environ else {}

    def keep_shared_memory_in(self, folder: str, segment: int | None = None) -> dict[str, str]:
        users = ("btl_sm", "btl_vader", "osc_sm")
        # In /tmp, a job would find the leftovers of a killed one whose mpirun had the same process id.
        session = {"PRTE_MCA_prte_tmpdir_base": folder, "OMPI_MCA_orte_tmpdir_base": folder}
        sizes = dict.fromkeys(("OMPI_MCA_btl_sm_segment_size", "OMPI_MCA_btl_vader_segment_size"), str(segment))
        sizes = {} if segment is None else {name: size for name, size in sizes.items() if name not in os.environ}
        return session | sizes | {f"OMPI_MCA_{user}_backing_directory": folder for user in users}

    def tagged(self, line: str, stream: str) -> tuple[int, str, str] | None:
        space = " " if self._major >= 5 else ""
        match = re.match(rf"\[\d+,(\d+)\]<(stdout|stderr)>:{space}?", line)
        return (int(match[1]), match[2], line[match.end() :]) if match else None

    def lost_host(self, said: str) -> str | None:
        match = re.search(
            r"lost communication with a remote daemon.*?Remote daemon *:.*? on node (\S+)", said, re.DOTALL
        )
        return match and match[1]

    def unreachable_host(self, said: str) -> str | None:
        match = re.search(r"daemon failed to report back after being spawned.*?Remote host: *(\S+)", said, re.DOTALL)
        return match and match[1]

    def ending(self, said: str) -> Ending | None:
        said = " ".join(said.split())
        if match := re.search(r"process rank (\d+) with PID \d+ on node (\S+) exited on signal (\d+)", said):
            return Ending(rank=int(match[1]), host=match[2], signal=int(match[3]))
        if match := re.search(r"MPI_ABORT was invoked on rank (\d+) .*?Errorcode: (\d+)", said):
            return Ending(rank=int(match[1]), code=int(match[2]))
        if match := re.search(r"Process name: \[[^ ]*,(\d+)\] Exit code: (\d+)", said):
            return Ending(rank=int(match[1]), code=int(match[2]))
        return None
