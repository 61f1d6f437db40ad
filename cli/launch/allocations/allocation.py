"""The base class of allocations."""

import abc
from collections.abc import Mapping
from typing import ClassVar

from easyscale.cli.launch.hosts import Host

__all__ = ["Allocation"]


class Allocation(abc.ABC):
    """Hosts that a scheduler has given to this job.

    Attributes:
        more: String. How to get more, for an error.
    """

    more: ClassVar[str]

    @classmethod
    @abc.abstractmethod
    def detect(cls, environment: Mapping[str, str]) -> "Allocation | None":
        """Return the one of which these variables tell, or `None`."""

    @abc.abstractmethod
    def hosts(self) -> list[Host]:
        """Return the hosts, each with the number of ranks that it is to run.

        Raises:
            LaunchError: If the scheduler does not say which they are.
        """

    def is_here(self, host: Host) -> bool:
        """Return whether a host, the only one of the allocation, is that of this process: ranks start without ssh then.

        It is, where the scheduler starts the launcher on one of the hosts.
        """
        return True

    def named(self, hosts: list[Host]) -> list[Host]:
        """Return those of `hosts()` that a launcher has to name: none, if the only one is that of this process."""
        return [] if len(hosts) == 1 and self.is_here(hosts[0]) else hosts
