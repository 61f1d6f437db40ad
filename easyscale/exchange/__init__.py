"""How a vector is summed over ranks: ring, tree and the others, behind one base class. NumPy only."""

from easyscale.exchange.exchange import Cost, Exchange
from easyscale.exchange.registry import available, check, get, register

__all__ = ["Cost", "Exchange", "available", "check", "get", "register"]
