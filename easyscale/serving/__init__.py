"""Parameter servers that do not wait for all workers. NumPy only.

rules     when a gradient is applied, and when a worker may go on
server    a server's side: owns a part of the weights, applies gradients, sends weights
client    a worker's side: pushes gradients, pulls weights
"""

from easyscale.serving.client import Client
from easyscale.serving.rules import rule_of
from easyscale.serving.server import Server
from easyscale.serving.staleness import Staleness

__all__ = ["Client", "Server", "Staleness", "rule_of"]
