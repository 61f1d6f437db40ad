"""The base class of MPI runtimes: how each starts ranks, and tells how they ended."""

import abc
import re
from collections.abc import Mapping
from typing import ClassVar

from easyscale.cli.launch.ending import Ending
from easyscale.cli.launch.hosts import Host
from easyscale.errors import LaunchError

__all__ = ["INSTALL", "Runtime"]

INSTALL = "Run: pip install 'easyscale[mpi]'"


class Runtime(abc.ABC):
    """An mpirun.

    Args:
        program: String. Path of the mpirun.
        version: String. What it says of its version.

    Attributes:
        sign: Pattern that is found in the version text of this kind, and of no other.
    """

    sign: ClassVar[re.Pattern[str]]

    def __init__(self, program: str, version: str):
        self.program = program
        self.version = version

    @classmethod
    def detect(cls, version: str) -> bool:
        """Return whether an mpirun that says this of its version is of this kind."""
        return bool(cls.sign.search(version))

    @property
    def name(self) -> str:
        """Its name and version, on one line."""
        return self.version.strip().splitlines()[0]

    @abc.abstractmethod
    def command(
        self, ranks: int, start: list[str], hosts: list[Host], variables: Mapping[str, str], cores: int
    ) -> list[str]:
        """Return the command line.

        Args:
            ranks: Int. How many ranks to start.
            start: What each rank runs.
            hosts: Where they run, and how many on each; empty for this host.
            variables: The environment variables that ranks get, on all hosts.
            cores: Int. How many cores this process may use.
        """

    @property
    def passes_on(self) -> bool:
        """Whether ranks of other hosts get a `TO_END` that mpirun gets."""
        return False

    @abc.abstractmethod
    def tagged(self, line: str, stream: str) -> tuple[int, str, str] | None:
        """Return rank, stream and text of a line that mpirun forwards from a rank, or `None` if the line is its own.

        Args:
            line: String. A line that mpirun has written.
            stream: `"stdout"` or `"stderr"`, where it has written it.
        """

    @abc.abstractmethod
    def ending(self, said: str) -> Ending | None:
        """Return how the job ended by what mpirun has `said`, or `None` if it did not say."""

    def lost_host(self, said: str) -> str | None:
        """Return the host that does not answer any more by what mpirun has `said`, or `None` if it did not say."""
        return None

    def unreachable_host(self, said: str) -> str | None:
        """Return the host on which no rank could be started by what mpirun has `said`, or `None`."""
        return None

    def elastic_flags(self) -> list[str]:
        """Return the flags with which ranks go on when one has failed.

        Raises:
            LaunchError: If they never do.
        """
        raise LaunchError(f"--elastic needs Open MPI 5 or later. Received: {self.program}, {self.name}. {INSTALL}")

    def environment(self) -> dict[str, str]:
        """Return the variables without which this mpirun does not start."""
        return {}

    def stay_on_this_host(self) -> dict[str, str]:
        """Return the variables by which ranks that are all on this host talk by its memory alone, if they can."""
        return {}

    def wait_to_listen(self, pipe: str) -> dict[str, str]:
        """Return the variables by which mpirun opens a named pipe between listening and answering, if it can.

        It waits there until the launcher opens the other end.
        """
        return {}

    def keep_shared_memory_in(self, folder: str, segment: int | None = None) -> dict[str, str]:
        """Return the variables by which the library keeps its shared memory and other files in `folder`, if it can.

        A rank that is killed leaves its files behind; in a folder of the job's own the launcher finds them.

        Args:
            folder: String.
            segment: Int. The bytes that a process may take for its messages. Defaults to `None`: as many as ever.
        """
        return {}
