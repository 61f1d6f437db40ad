"""Replacement for ssh that mpirun starts; its arguments are a token, a host and a command.

Like ssh, it runs the command in a shell on that host, through the Ray actor there.
"""

import importlib
import logging
import os
import sys
from typing import Any

from easyscale.integrations.ray.node import Node

__all__ = ["main"]


def main() -> int:
    """Run the command and return its exit code."""
    ray: Any = importlib.import_module("ray")
    token, host, *words = sys.argv[1:]
    ray.init(os.environ["RAY_ADDRESS"], log_to_driver=False, logging_level=logging.ERROR)
    node = ray.get_actor(Node.name_of(token, host), namespace=Node.NAMESPACE)
    code, errors = ray.get(node.execute.remote(" ".join(words)))
    sys.stderr.write(errors)
    return code


if __name__ == "__main__":
    sys.exit(main())
