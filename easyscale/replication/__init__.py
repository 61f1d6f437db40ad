"""The kinds of replication of a model, for all backends.

replication    the objects through which an optimizer uses all workers
connecting     creates them, the same way on all workers
"""

from typing import Any

from easyscale import backend as backends
from easyscale.backend.tensorflow.in_graph import devices
from easyscale.errors import unknown
from easyscale.settings import Settings

__all__ = ["available", "devices", "get"]

DEFAULT = "between_graph"
_NAMES = ["between_graph", "in_graph"]


def available() -> list[str]:
    """Return the names of all kinds of replication, sorted.

    Example:

    >>> easyscale.replication.available()
    ['between_graph', 'in_graph']
    """
    return list(_NAMES)


def check(identifier: str | None) -> str:
    """Return the name of the replication that `identifier` stands for.

    Raises:
        ValueError: If there is no replication of this name.
    """
    name = identifier if identifier is not None else Settings.read().replication or DEFAULT
    if name not in _NAMES:
        raise ValueError(unknown("replication", name, available()))
    return name


def get(identifier: str | None = None) -> Any:
    """Return the class of a replication.

    Args:
        identifier: String. `"between_graph"` or `"in_graph"`. Defaults to `None`: the value of `easyscale launch
            --replication`, else `"between_graph"`.

    Raises:
        ValueError: If there is no replication of this name.

    Example:

    >>> with easyscale.replication.get("between_graph").scope():
    ...     model = build_model()
    """
    return backends.get().replicas(check(identifier))
