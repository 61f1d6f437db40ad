"""Exchanges, which sum a vector over ranks: ring, tree and the others, with one base class. NumPy only."""

from easyscale.exchange.exchange import Cost, Exchange
from easyscale.exchange.parameter_server import ParameterServer
from easyscale.exchange.registry import (
    asked,
    available,
    candidates,
    check,
    get,
    has_servers,
    register,
    with_options,
)

__all__ = [
    "Cost",
    "Exchange",
    "ParameterServer",
    "asked",
    "available",
    "candidates",
    "check",
    "get",
    "has_servers",
    "register",
    "with_options",
]
