"""The base class of allocations."""

import abc
from collections.abc import Mapping
from typing import ClassVar

from easyscale.cli.launch.hosts import Host

__all__ = ["Allocation"]


class Allocation(abc.ABC):
    """Hosts that a scheduler has assigned to this job.

    Attributes:
        more: String. How to request more slots, for error messages.
    """

    more: ClassVar[str]

    @classmethod
    @abc.abstractmethod
    def detect(cls, environment: Mapping[str, str]) -> "Allocation | None":
        """Return the allocation that these variables describe, or `None`."""

    @abc.abstractmethod
    def hosts(self) -> list[Host]:
        """Return the hosts, each with its number of ranks.

        Raises:
            LaunchError: If the scheduler does not say which hosts these are.
        """

    def is_here(self, host: Host) -> bool:
        """Return whether the allocation's only host is that of this process, so that ranks start without ssh.

        True by default, for schedulers that start the launcher on one of the hosts.
        """
        return True

    def named(self, hosts: list[Host]) -> list[Host]:
        """Return the `hosts` that have to be passed to mpirun: none if the only one is that of this process."""
        return [] if len(hosts) == 1 and self.is_here(hosts[0]) else hosts
