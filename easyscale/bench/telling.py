"""Reports from ranks to `easyscale bench`, which has started them: one JSON object a line."""

import json
from collections.abc import Callable

from easyscale.communicator import Communicator

__all__ = ["teller"]


def teller(communicator: Communicator) -> Callable[[dict], None]:
    """Return a function that prints a message as one line of JSON on rank 0, and does nothing on other ranks."""
    return _tell if communicator.rank == 0 else lambda message: None


def _tell(message: dict) -> None:
    print(json.dumps(message), flush=True)
