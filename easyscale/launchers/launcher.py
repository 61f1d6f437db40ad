"""The base class of launchers: the environment variables that give a process its rank."""

from collections.abc import Mapping
from typing import ClassVar

__all__ = ["Launcher"]


class Launcher:
    """Information that a launcher passes to the processes that it starts.

    A subclass defines the names of its variables.

    Args:
        environment: The environment variables of the process. `detect` must be true for them.

    Attributes:
        name: String. The launcher's name in messages.
        order: Int. If variables of several launchers are set, the one with the lowest counts: mpirun in a Slurm job
            has those of both.
    """

    name: ClassVar[str]
    order: ClassVar[int]

    rank_variable: ClassVar[str]
    size_variable: ClassVar[str]
    local_rank_variable: ClassVar[str]
    local_size_variable: ClassVar[str | None] = None  # not every launcher gives it as a number

    def __init__(self, environment: Mapping[str, str]):
        self._environment = environment

    @classmethod
    def detect(cls, environment: Mapping[str, str]) -> bool:
        """Return whether this launcher has started the process that has these variables."""
        return environment.get(cls.size_variable, "").isdigit()

    @property
    def size(self) -> int:
        """The number of ranks."""
        return int(self._environment[self.size_variable])

    @property
    def rank(self) -> int:
        """This process's rank; 0 if it is not given."""
        return self._number(self.rank_variable) or 0

    @property
    def local_rank(self) -> int | None:
        """This process's rank on its host; `None` if it is not given."""
        return self._number(self.local_rank_variable)

    @property
    def local_size(self) -> int | None:
        """The number of ranks on this process's host; `None` if it is not given."""
        return self._number(self.local_size_variable)

    def _number(self, variable: str | None) -> int | None:
        value = self._environment.get(variable, "") if variable else ""
        return int(value) if value.isdigit() else None
