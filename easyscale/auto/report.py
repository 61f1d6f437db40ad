"""What `--auto` says of what it has done, and of what it could not do: each line once, by the chief."""

from easyscale.communicator import Communicator
from easyscale.errors import tell

__all__ = ["Report"]


class Report:
    """Says lines to the user.

    Args:
        communicator: `Communicator`. Of it only the chief says something.
    """

    def __init__(self, communicator: Communicator):
        self._communicator = communicator
        self._said: set[str] = set()

    def say(self, line: str) -> None:
        """Say a line on stderr, unless it has been said."""
        if line not in self._said:
            self._said.add(line)
            if self._communicator.is_chief:
                tell(f"easyscale: --auto: {line}")
