"""How a vector is summed over ranks: ring, tree and the others, behind one base class. NumPy only."""

from easyscale.exchange.between_gpus import between_gpus
from easyscale.exchange.exchange import Cost, Exchange
from easyscale.exchange.on_gpus import OnGpus, for_gpus, for_host
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
    "OnGpus",
    "ParameterServer",
    "asked",
    "available",
    "between_gpus",
    "candidates",
    "check",
    "for_gpus",
    "for_host",
    "get",
    "has_servers",
    "register",
    "with_options",
]
