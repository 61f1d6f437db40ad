"""The base class of MPI runtimes: starts ranks, and parses how they ended."""

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
    """An mpirun: its command line and its messages.

    Args:
        program: String. Path of the mpirun.
        version: String. The output of its `--version`.

    Attributes:
        sign: Pattern that matches the version text of this kind, and of no other.
    """

    sign: ClassVar[re.Pattern[str]]

    def __init__(self, program: str, version: str):
        self.program = program
        self.version = version

    @classmethod
    def detect(cls, version: str) -> bool:
        """Return whether an mpirun with this version text is of this kind."""
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
            ranks: Int. Number of ranks to start.
            start: What each rank runs.
            hosts: The hosts, each with its number of ranks; empty for this host.
            variables: The environment variables of the ranks, on all hosts.
            cores: Int. Number of cores that this process may use.
        """

    @property
    def passes_on(self) -> bool:
        """True if mpirun passes a `TO_END` on to ranks on other hosts."""
        return False

    @abc.abstractmethod
    def tagged(self, line: str, stream: str) -> tuple[int, str, str] | None:
        """Return rank, stream and text of a line that mpirun forwards from a rank, or `None` if the line is its own.

        Args:
            line: String. A line that mpirun has written.
            stream: `"stdout"` or `"stderr"`, to which mpirun has written it.
        """

    @abc.abstractmethod
    def ending(self, said: str) -> Ending | None:
        """Return how the job ended according to what mpirun has `said`, or `None` if unknown."""

    def lost_host(self, said: str) -> str | None:
        """Return the host that no longer answers according to what mpirun has `said`, or `None` if unknown."""
        return None

    def unreachable_host(self, said: str) -> str | None:
        """Return the host on which ranks could not be started according to what mpirun has `said`, or `None`."""
        return None

    def elastic_flags(self) -> list[str]:
        """Return the flags that let ranks go on after one has failed.

        Raises:
            LaunchError: If this MPI does not support that.
        """
        raise LaunchError(f"--elastic needs Open MPI 5 or later. Received: {self.program}, {self.name}. {INSTALL}")

    def environment(self) -> dict[str, str]:
        """Return the environment variables that this mpirun needs to start."""
        return {}

    def stay_on_this_host(self) -> dict[str, str]:
        """Return the variables that make ranks on this host communicate through shared memory only, if supported."""
        return {}

    def wait_to_listen(self, pipe: str) -> dict[str, str]:
        """Return the variables that make mpirun open a named pipe before it answers on its port, if supported.

        It waits there until the launcher opens the other end.
        """
        return {}

    def keep_shared_memory_in(self, folder: str, segment: int | None = None) -> dict[str, str]:
        """Return the variables that make MPI keep its shared memory and other files in `folder`, if supported.

        A rank that is killed leaves its files behind; in the job's own folder, the launcher finds them.

        Args:
            folder: String.
            segment: Int. Bytes that a process may use for its messages. Defaults to `None`: MPI's default.
        """
        return {}
