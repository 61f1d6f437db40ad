"""How ranks tell `easyscale bench`, which has started them, what they do and find."""

import json
from collections.abc import Callable

from easyscale.communicator import Communicator

__all__ = ["teller"]


def teller(communicator: Communicator) -> Callable[[dict], None]:
    """Return a function that prints a message as one line of JSON; on other ranks than the first it does nothing."""
    return _tell if communicator.rank == 0 else lambda message: None


def _tell(message: dict) -> None:
    print(json.dumps(message), flush=True)
