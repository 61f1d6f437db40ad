"""The public names of EasyScale, and where each is defined: read from files, so that nothing has to be installed."""

import ast
import functools
import shutil
from pathlib import Path
from typing import Any

__all__ = ["copy_package", "definition_of", "public_names"]

ROOT = Path(__file__).parents[2]
# Folders at the top of the repository that install inside the package.
_ELSEWHERE = {"callbacks": "callbacks", "cli": "cli"}
_READ = ("_WHERE", "_MODULES", "__all__")  # variables of a package


def copy_package(folder: Path) -> None:
    """Put all modules into one folder, as they are when EasyScale is installed: there mkdocstrings reads them."""
    shutil.rmtree(folder, ignore_errors=True)
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "easyscale", folder / "easyscale", ignore=ignore)
    for inside, at_top in _ELSEWHERE.items():
        shutil.copytree(ROOT / at_top, folder / "easyscale" / inside, ignore=ignore)


def public_names(module: str = "easyscale") -> list[str]:
    """Return the dotted names of all that is in the `__all__` of a module, and of the modules in it."""
    home = definition_of(module)
    if _file_of(home) is None:
        return []
    names = [f"{module}.{name}" for name in _variables(home)["__all__"]]
    return [found for name in names for found in (name, *public_names(name))]


def definition_of(name: str) -> str:
    """Return the dotted path of the module in which something is defined, and its name there.

    >>> definition_of("easyscale.shard")
    'easyscale.data.shard.shard'
    """
    if _file_of(name) is not None:
        return name
    module, _, last = name.rpartition(".")
    if _file_of(module) is None:  # a name inside of an alias of a module
        return definition_of(f"{definition_of(module)}.{last}")
    where = _variables(module).get("_WHERE", {})
    if last in where:
        home = where[last] if where[last].startswith("easyscale.") else f"{module}.{where[last]}"
        return definition_of(f"{home}.{last}") if _file_of(f"{home}.{last}") is None else _defined(home, last)
    return _defined(module, last)


def _defined(module: str, name: str) -> str:
    for node in _tree(module).body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if name == (alias.asname or alias.name):
                    return definition_of(f"{node.module}.{alias.name}")
    return f"{module}.{name}"


def _file_of(module: str) -> Path | None:
    package, *inside = module.split(".")
    if package != "easyscale":
        return None
    folder = ROOT / "easyscale"
    if inside and inside[0] in _ELSEWHERE:
        folder, inside = ROOT / _ELSEWHERE[inside[0]], inside[1:]
    candidates = [folder.joinpath(*inside, "__init__.py")]
    candidates += [folder.joinpath(*inside[:-1], f"{inside[-1]}.py")] if inside else []
    return next((path for path in candidates if path.exists()), None)


@functools.cache
def _tree(module: str) -> ast.Module:
    file = _file_of(module)
    if file is None:
        raise ValueError(f"a public name must be one of the package's. Received: '{module}', which is no module")
    return ast.parse(file.read_text())


def _variables(module: str) -> dict[str, Any]:
    """What a package says of itself in the variables that are lists and dictionaries of names."""
    found: dict[str, Any] = {}
    for node in _tree(module).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in _READ:
            code = compile(ast.Expression(node.value), module, "eval")
            found[ast.unparse(node.targets[0])] = eval(code, {"__builtins__": {}}, found)
    return found
