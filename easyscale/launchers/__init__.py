"""Launcher detection: this process's rank and size from environment variables, before MPI is loaded.

open_mpi    mpirun of Open MPI
hydra       mpirun of MPICH or Intel MPI, and other launchers that speak PMI
slurm       srun

To add a launcher, add a file with a subclass of `Launcher` to this folder; no other change is needed.
"""

import functools
import importlib
import os
from collections.abc import Mapping

from easyscale.launchers.launcher import Launcher
from easyscale.settings import Settings

__all__ = ["Launcher", "available", "detect"]


@functools.cache
def available() -> tuple[type[Launcher], ...]:
    """Return all launchers, in the order in which they are tried."""
    for file in os.listdir(os.path.dirname(__file__)):  # `pkgutil` would slow down every `import easyscale`
        name, extension = os.path.splitext(file)
        if extension == ".py" and name != "__init__":
            importlib.import_module(f"{__name__}.{name}")
    return tuple(sorted(Launcher.__subclasses__(), key=lambda kind: (kind.order, kind.name)))


def detect(environment: Mapping[str, str] | None = None) -> Launcher | None:
    """Return the launcher that has started this process, or `None` if there was none.

    It shows whether MPI is needed at all, and whether MPI has found all ranks that the launcher started. If launcher
    and MPI library did not match, each process would train alone.

    Args:
        environment: Mapping of variables. Defaults to `None`: the environment of this process.

    Example:

    >>> launcher = detect({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"})
    >>> launcher.name, launcher.rank, launcher.size
    ('mpirun of Open MPI', 1, 4)
    """
    environment = os.environ if environment is None else environment
    if Settings.read(environment, ["rank_process"]).rank_process not in (None, os.getpid()):
        return None  # a child of a rank, such as a data-loading process, has inherited the launcher's variables
    return next((kind(environment) for kind in available() if kind.detect(environment)), None)
