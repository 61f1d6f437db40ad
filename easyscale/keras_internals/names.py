"""Checks that a library has the private names that are used."""

import dis
import inspect
import sys
from types import CodeType, ModuleType

from easyscale.errors import EasyScaleError

__all__ = ["has", "missing", "release_of"]


def release_of(version: str) -> tuple[int, int]:
    """Return the first two numbers of a version, such as `(3, 16)` for `"3.16.0.dev2026"`."""
    major, minor, *_ = version.split(".")
    return int(major), int(minor)


def missing(library: str, *names: str) -> EasyScaleError:
    """Return an error that reports names missing in a library, with the library's version."""
    found = ", ".join(f"`{name}`" for name in names)
    version = getattr(sys.modules.get(library), "__version__", "unknown")
    return EasyScaleError(
        f"{library} must have all that EasyScale uses of it. Received: {library} {version} without {found}. "
        f"Install an earlier {library}, or a later EasyScale"
    )


def has(owner: ModuleType | type, name: str) -> bool:
    """Return whether a module or class has a name, or a method of the class assigns it or has it as a constant."""
    if hasattr(owner, name):
        return True
    members = (
        [member for base in inspect.getmro(owner) for member in vars(base).values()] if inspect.isclass(owner) else []
    )
    methods = [inspect.unwrap(member) for member in members if callable(member)]
    codes = [method.__code__ for method in methods if inspect.isfunction(method)]
    return any(name in code.co_consts or (name in code.co_names and _sets(code, name)) for code in codes)


def _sets(code: CodeType, name: str) -> bool:
    return any(
        instruction.opname == "STORE_ATTR" and instruction.argval == name for instruction in dis.get_instructions(code)
    )
