"""The environment of a benchmark: machine and software versions."""

import importlib.metadata
import os
import platform

import numpy as np

import easyscale
from easyscale import onednn
from easyscale.communicator import Communicator

__all__ = ["describe_cpu", "describe_machine"]


def describe_machine(communicator: Communicator) -> dict:
    """Return the numbers of ranks and cores, the processor and the versions, as JSON values."""
    return {
        "ranks": communicator.size,
        "servers": communicator.servers,
        "cores": os.cpu_count(),
        "cpu": describe_cpu(),
        "onednn": onednn.are_on(os.environ),
        "system": platform.platform(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "mpi": communicator.library,
        "mpi4py": importlib.metadata.version("mpi4py"),
        "easyscale": easyscale.__version__,
    }


def describe_cpu() -> str:
    """Return the name of the processor."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()
