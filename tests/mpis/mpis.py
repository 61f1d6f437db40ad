"""The MPI runtimes that are tested beside Open MPI, each in an environment of its own that `make test` makes.

The environment has the runtime and mpi4py; all else it finds in the one that the tests run in.
"""

import platform
import sys
from pathlib import Path

from launches import Start

__all__ = ["BY_LAUNCH", "BY_MPIEXEC", "NAMES", "launch", "mpiexec", "python"]

NAMES = ["mpich", *["impi-rt"] * (platform.machine() == "x86_64")]  # Intel's is for one kind of processor only


def python(name: str) -> str:
    """The Python of an environment."""
    return str(Path(sys.prefix, "mpis", name, "bin", "python"))


def launch(name: str, size: int | str) -> list[str]:
    """The command that starts Python on `size` ranks with `easyscale launch`; a script follows."""
    return [python(name), "-m", "easyscale", "launch", "-n", str(size)]


def mpiexec(name: str, size: int | str) -> list[str]:
    """The same with the runtime's own command."""
    return [str(Path(python(name)).with_name("mpiexec.hydra")), "-n", str(size), python(name)]


BY_LAUNCH, BY_MPIEXEC = (
    [Start(f"{name}-{how.__name__}", tuple(how(name, "{size}"))) for name in NAMES] for how in (launch, mpiexec)
)
