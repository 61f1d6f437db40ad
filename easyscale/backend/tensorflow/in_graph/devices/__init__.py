"""The exchanges between the devices of one process, as operations of its graph. To add one, add a file here.

A file is named after the exchange between processes that moves vectors the same way, if there is one.
"""

import importlib
import pkgutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from easyscale.backend.tensorflow.in_graph.device_exchange import DeviceExchange

__all__ = ["available", "get"]


def available() -> list[str]:
    """Return the names of all exchanges between devices, sorted.

    Example:

    >>> available()
    ['nccl', 'parameter_server', 'ring', 'tree']
    """
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def get(name: str) -> "type[DeviceExchange] | None":
    """Return the `DeviceExchange` of this name, or `None` if there is none.

    Args:
        name: String. One that `available` returns.

    Example:

    >>> get("hierarchical") is None
    True
    """
    if name not in available():
        return None
    module = importlib.import_module(f"{__name__}.{name}")
    classes = [value for value in vars(module).values() if isinstance(value, type)]
    return next(cls for cls in classes if cls.__module__ == module.__name__)
