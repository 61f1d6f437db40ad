"""Whether a library has the private names that are used of it."""

import dis
import importlib
import inspect
import sys
from collections.abc import Mapping, Sequence
from types import CodeType, ModuleType
from typing import Any, TypeAlias

from easyscale.errors import EasyScaleError

__all__ = ["Names", "missing", "release_of", "require"]

Names: TypeAlias = Mapping[tuple[str, str | None], Sequence[str]]  # from a module, and a class in it, to what it has


def release_of(version: str) -> tuple[int, int]:
    """Return the first two numbers of a version, such as `(3, 16)` of `"3.16.0.dev2026"`."""
    major, minor, *_ = version.split(".")
    return int(major), int(minor)


def require(names: Names) -> None:
    """Raise `EasyScaleError` if a library has another name for any of these."""
    for (module, kind), members in names.items():
        library = module.partition(".")[0]
        try:
            owner: Any = importlib.import_module(module)
            owner = owner if kind is None else getattr(owner, kind)
        except (ImportError, AttributeError):
            raise missing(library, module if kind is None else f"{module}.{kind}") from None
        for name in members:
            if not _has(owner, name):
                raise missing(library, f"{kind or module}.{name}")


def missing(library: str, name: str) -> EasyScaleError:
    """Return the error that says which name of which version of a library is not there."""
    version = getattr(sys.modules.get(library), "__version__", "unknown")
    return EasyScaleError(
        f"{library} must have all that EasyScale uses of it. Received: {library} {version} without `{name}`. "
        f"Install an earlier {library}, or a later EasyScale"
    )


def _has(owner: ModuleType | type, name: str) -> bool:
    """Whether a module or class has a name, or one of the class's methods sets such an attribute, or knows the text."""
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
