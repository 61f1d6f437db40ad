"""The checks of `easyscale doctor`, in order."""

from collections.abc import Callable, Sequence

from easyscale.cli.doctor import host, hosts, software, trial
from easyscale.cli.doctor.finding import Finding
from easyscale.cli.launch import hosts as forms

__all__ = ["Examination"]


class Examination:
    """Examines this host or several hosts, then trains on them if nothing required is missing.

    Args:
        hosts: The hosts, each with its number of ranks. If empty, this host.
        timeout: Float. Seconds to wait for each host, and then for the ranks.
        begin: Function. Called with a description of the next check.
        show: Function. Called with each `Finding`.

    Attributes:
        findings: List of `Finding`.
        versions: Dict. For each host, the version of each package.
    """

    def __init__(
        self,
        hosts: Sequence[forms.Host],
        timeout: float,
        begin: Callable[[str], None],
        show: Callable[[Finding], None],
    ):
        self._hosts, self._timeout, self._begin, self._show = hosts, timeout, begin, show
        self.findings: list[Finding] = []
        self.versions: dict[str, dict[str, str]] = {}

    def run(self) -> None:
        """Run the checks."""
        self._add([software.told()])
        names = self._look_at_hosts() if self._hosts else self._look_here()
        if self.fails or len(names) == 1:
            return
        self._begin(f"trains on {len(names) or 2} ranks")
        self._add(trial.examine(names, self._timeout))

    @property
    def fails(self) -> bool:
        """True if, as far as is known, training would fail."""
        return any(finding.grade == "fails" for finding in self.findings)

    def _look_here(self) -> list[str]:
        self._begin("looks at this host")
        found = host.examine()
        self.versions["this host"] = found.versions
        self._add(found.findings)
        return []

    def _look_at_hosts(self) -> list[str]:
        """Examine the hosts; return the names of those that can be reached."""
        self._begin(f"looks at {len(self._hosts)} hosts")
        if self.fails:  # the settings are invalid, and would be so on all hosts
            return []
        launcher = software.mpi()
        if launcher.grade == "fails":  # mpirun starts the checks there
            self._add([launcher])
            return []
        found = hosts.examine(self._hosts, self._timeout)
        self.versions |= {name: seen.versions for name, seen in found.items() if seen.versions}
        for seen in found.values():
            self._add(seen.findings)
        if len(self.versions) > 1:
            self._add(hosts.compare(self.versions))
        return list(self.versions)

    def _add(self, findings: Sequence[Finding]) -> None:
        self.findings += findings
        for finding in findings:
            self._show(finding)
