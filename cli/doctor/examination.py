"""All that `easyscale doctor` looks at, one thing after the other."""

from collections.abc import Callable, Sequence

from easyscale.cli.doctor import host, hosts, software, trial
from easyscale.cli.doctor.finding import Finding
from easyscale.cli.launch import hosts as forms

__all__ = ["Examination"]


class Examination:
    """Looks at this host, or at some hosts, and has ranks train there if nothing that they need is missing.

    Args:
        hosts: The hosts, each with the number of ranks that it is to run. With none, this host.
        timeout: Float. Seconds that each host, and then the ranks, may take to answer.
        begin: Function. Called with what is looked at next.
        show: Function. Called with each `Finding`.

    Attributes:
        findings: List of `Finding`.
        versions: Dict. For each host its versions, by package.
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
        """Look."""
        self._add([software.told()])
        names = self._look_at_hosts() if self._hosts else self._look_here()
        if self.fails or len(names) == 1:
            return
        self._begin(f"trains on {len(names) or 2} ranks")
        self._add(trial.examine(names, self._timeout))

    @property
    def fails(self) -> bool:
        """Whether training would fail, as far as that is known."""
        return any(finding.grade == "fails" for finding in self.findings)

    def _look_here(self) -> list[str]:
        self._begin("looks at this host")
        found = host.examine()
        self.versions["this host"] = found.versions
        self._add(found.findings)
        return []

    def _look_at_hosts(self) -> list[str]:
        """Return the names of those that can be reached."""
        self._begin(f"looks at {len(self._hosts)} hosts")
        if self.fails:  # what would be started there is told the same
            return []
        launcher = software.mpi()
        if launcher.grade == "fails":  # which starts what runs there
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
