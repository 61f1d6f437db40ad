"""The MPI runtimes that can start ranks, and detection of the installed one.

open_mpi     Open MPI, versions 4 and 5
mpich        MPICH
intel_mpi    Intel MPI

To add one, add a file to this folder with a subclass of `Runtime`; nothing else refers to it.
"""

import functools
import importlib.util
import os
import subprocess
import sys

from easyscale.cli.launch.runtimes.runtime import INSTALL, Runtime
from easyscale.discovery import kinds_in
from easyscale.errors import LaunchError

__all__ = ["INSTALL", "Runtime", "available", "find"]


@functools.cache
def available() -> tuple[type[Runtime], ...]:
    """Return the classes of all known runtimes, installed or not."""
    return tuple(kinds_in(__name__, Runtime))


def find() -> Runtime:
    """Return the MPI runtime in this Python's folder, else the first on `PATH`.

    Raises:
        LaunchError: If there is none, it is of an unknown kind, or mpi4py is missing, which ranks need.
    """
    program = _program()
    if program is None:
        raise LaunchError(f"several ranks need an MPI runtime. Found no mpirun, here or on PATH. {INSTALL}")
    version = _version(program)
    for kind in available():
        if kind.detect(version):
            if importlib.util.find_spec("mpi4py") is None:
                raise LaunchError(f"several ranks need mpi4py in this Python, {sys.executable}. {INSTALL}")
            return kind(program, version)
    said = version.strip().splitlines()[0] if version.strip() else "nothing"
    raise LaunchError(f"mpirun must be of Open MPI, MPICH or Intel MPI. Received: {program} says '{said}'. {INSTALL}")


def _program() -> str | None:
    beside = os.path.dirname(sys.executable)
    for folder in [beside, *os.environ.get("PATH", os.defpath).split(os.pathsep)]:
        for name in ("mpirun", "mpiexec"):
            program = os.path.join(folder, name)
            if folder and os.path.isfile(program) and os.access(program, os.X_OK):
                return os.path.abspath(program)
    return None


def _version(program: str) -> str:
    path = os.path.dirname(program) + os.pathsep + os.environ.get("PATH", os.defpath)
    environment = {"HOME": os.path.expanduser("~"), **os.environ, "PATH": path}  # Open MPI needs HOME
    try:
        done = subprocess.run(
            [program, "--version"], env=environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, errors="replace", timeout=30,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{type(error).__name__}: {error}"
    return done.stdout + done.stderr
