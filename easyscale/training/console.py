"""What a `fit()` says of itself."""

from typing import ClassVar

from easyscale.communicator import Communicator

__all__ = ["Console"]


class Console:
    """Writes lines to the console, on the chief.

    Args:
        communicator: The `Communicator`.
        verbose: Bool. Whether `fit()` says anything.
    """

    _said: ClassVar[set[str]] = set()  # once, by this process

    def __init__(self, communicator: Communicator, verbose: bool):
        self._communicator, self._verbose = communicator, verbose

    @property
    def is_verbose(self) -> bool:
        """Whether this worker says what happens."""
        return self._verbose and self._communicator.is_chief

    def say_once(self, line: str) -> None:
        """Write `line` as `say` does, unless this process has done so."""
        if self.is_verbose and line not in self._said:
            self._said.add(line)
            self.say(line)

    def say(self, line: str) -> None:
        """Write `line`, if this worker says what happens."""
        if self.is_verbose:
            print(f"EasyScale: {line}", flush=True)
