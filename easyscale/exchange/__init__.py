"""How a vector is summed over ranks: ring, tree and the others, behind one base class. NumPy only."""

from easyscale.exchange.exchange import Cost, Exchange
from easyscale.exchange.registry import available, candidates, check, get, is_open, register

__all__ = ["Cost", "Exchange", "available", "candidates", "check", "get", "is_open", "register"]
