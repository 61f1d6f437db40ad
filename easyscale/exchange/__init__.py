"""How a vector is summed over ranks: ring, tree and the others, behind one base class. NumPy only."""

from easyscale.exchange.exchange import Cost, Exchange
from easyscale.exchange.parameter_server import ParameterServer
from easyscale.exchange.registry import (
    available,
    candidates,
    check,
    get,
    has_servers,
    is_open,
    register,
    with_options,
)

__all__ = [
    "Cost",
    "Exchange",
    "ParameterServer",
    "available",
    "candidates",
    "check",
    "get",
    "has_servers",
    "is_open",
    "register",
    "with_options",
]
