"""The modules of EasyScale, as files and as syntax trees: what the rules of this folder look at."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Folders at the top of the repository that install inside the package.
FOLDERS = {"easyscale": "easyscale", "callbacks": "easyscale.callbacks", "cli": "easyscale.cli"}


def _modules():
    """Name -> file of every module."""
    found = {}
    for folder, package in FOLDERS.items():
        for file in sorted((ROOT / folder).rglob("*.py")):
            inside = file.relative_to(ROOT / folder).with_suffix("").parts
            found[".".join([package, *(part for part in inside if part != "__init__")])] = file
    return found


MODULES = _modules()
TREES = {module: ast.parse(file.read_text()) for module, file in MODULES.items()}
# What is loaded elsewhere: modules of PyTorch and JAX by `tests/backend/torch` and `jax`.
NOT_LOADABLE = ("easyscale.communicator.mpi", "easyscale.backend.torch", "easyscale.backend.jax", "easyscale.__main__")
LOADABLE = [name for name in MODULES if not name.startswith(NOT_LOADABLE)]


def imports(module):
    """The names of all modules that a module imports, also inside functions; `from a import b` counts as `a.b`, too."""
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import; it must be absolute"
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from [name for name in inside if name in MODULES] or [node.module]


def root(name):
    return name.partition(".")[0]
