"""Messages of `--auto` about what it did and could not do, each printed once, by the chief."""

from easyscale.communicator import Communicator
from easyscale.errors import tell

__all__ = ["Report"]


class Report:
    """Prints messages to the user.

    Args:
        communicator: `Communicator`. Only its chief prints.
    """

    def __init__(self, communicator: Communicator):
        self._communicator = communicator
        self._said: set[str] = set()

    def say(self, line: str) -> None:
        """Print a line to stderr, unless it was printed before."""
        if line not in self._said:
            self._said.add(line)
            if self._communicator.is_chief:
                tell(f"easyscale: --auto: {line}")
