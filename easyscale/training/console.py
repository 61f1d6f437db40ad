"""Console output of a `fit()`."""

from typing import ClassVar

from easyscale.communicator import Communicator

__all__ = ["Console"]


class Console:
    """Prints lines to the console, on the chief.

    Args:
        communicator: The `Communicator`.
        verbose: Bool. Whether `fit()` prints anything.
    """

    _said: ClassVar[set[str]] = set()  # lines that this process has printed once

    def __init__(self, communicator: Communicator, verbose: bool):
        self._communicator, self._verbose = communicator, verbose

    @property
    def is_verbose(self) -> bool:
        """True if this worker prints."""
        return self._verbose and self._communicator.is_chief

    def say_once(self, line: str) -> None:
        """Print `line` as `say` does, unless this process has already done so."""
        if self.is_verbose and line not in self._said:
            self._said.add(line)
            self.say(line)

    def say(self, line: str) -> None:
        """Print `line`, if this worker prints."""
        if self.is_verbose:
            print(f"EasyScale: {line}", flush=True)
