"""How Python is started on ranks whose Keras has PyTorch, in the environment that `make test` makes for it."""

import sys
from pathlib import Path

from launches import Start, mpirun

__all__ = ["PYTHON", "START", "VARIABLES", "launch"]

PYTHON = str(Path(sys.prefix, "backends", "torch", "bin", "python"))
VARIABLES = {"KERAS_BACKEND": "torch"}
_WITH = ["env", *(f"{name}={value}" for name, value in VARIABLES.items())]
START = Start("torch", (*_WITH, *mpirun("{size}"), PYTHON))


def launch(size: int) -> list[str]:
    """The command that starts Python on `size` ranks with `easyscale launch`; a script follows."""
    path = f"PATH={Path(sys.executable).parent}:/usr/bin:/bin"  # where the MPI runtime is
    return [*_WITH, path, PYTHON, "-m", "easyscale", "launch", "-n", str(size)]
