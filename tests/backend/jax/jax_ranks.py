"""How Python is started on ranks whose Keras has JAX, in the environment that `make test` makes for it."""

import sys
from pathlib import Path

from launches import Start, mpirun

__all__ = ["PYTHON", "START", "VARIABLES", "launch"]

PYTHON = str(Path(sys.prefix, "backends", "jax", "bin", "python"))
# What XLA optimizes takes longer than what is computed here.
_QUICK = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
VARIABLES = {"KERAS_BACKEND": "jax", "XLA_FLAGS": _QUICK}
_WITH = ["env", *(f"{name}={value}" for name, value in VARIABLES.items())]
START = Start("jax", (*_WITH, *mpirun("{size}"), PYTHON))


def launch(size: int) -> list[str]:
    """The command that starts Python on `size` ranks with `easyscale launch`; a script follows."""
    path = f"PATH={Path(sys.executable).parent}:/usr/bin:/bin"  # where the MPI runtime is
    return [*_WITH, path, PYTHON, "-m", "easyscale", "launch", "-n", str(size)]
