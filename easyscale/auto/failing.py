"""Errors of one rank that all ranks raise."""

import builtins
import contextlib
from collections.abc import Iterator

from easyscale.communicator import Communicator
from easyscale.errors import PeerError

__all__ = ["failing_together"]


@contextlib.contextmanager
def failing_together(communicator: Communicator, of_chief: bool = False) -> Iterator[None]:
    """Return a context at whose end all ranks raise if one of them has. Collective: all ranks enter it.

    A rank that has failed raises its own error, and the others raise one of the same type, if it is a built-in one: a
    script that catches it on one rank catches it on all of them.

    Args:
        communicator: The `Communicator`.
        of_chief: Bool. Whether only the chief can fail. Defaults to `False`.
    """
    failed: Exception | None = None
    try:
        yield
    except Exception as error:
        failed = error
    told = None if failed is None else [type(failed).__name__, str(failed)]
    all_ranks = communicator.all_gather_object(told)
    if failed is not None:
        raise failed
    for rank, other in enumerate(all_ranks):
        if other is not None:
            name, text = other
            kind = getattr(builtins, name, None)
            if not (isinstance(kind, type) and issubclass(kind, Exception)):
                kind, text = PeerError, f"{name}: {text}"
            raise kind(text if of_chief else f"[rank {rank} of {communicator.size}] {text}")
