"""Releases of Keras and its backends that EasyScale is tested with, and checks for others. Loads none of them."""

import sys
from collections.abc import Sequence

from easyscale.errors import EasyScaleError

__all__ = ["TRIED", "check", "untried"]

# The first and the last release: `make test-all` runs some tests with both. Earlier ones are known not to work.
TRIED = {
    "keras": ("3.12", "3.16"),
    "tensorflow": ("2.18", "2.22"),
    "torch": ("2.4", "2.15"),
    "jax": ("0.4.34", "0.12"),
}


def _numbers(version: str, count: int) -> tuple[int, ...]:
    """Return the first numbers of a version: `(2, 13)` for `"2.13.0+cpu"`."""
    found = [int(part) for part in version.partition("+")[0].split(".")[:count] if part.isdigit()]
    return tuple(found + [0] * (count - len(found)))


def _compare(name: str, version: str) -> int:
    """Return -1 for a version before the tested ones, 1 for one after them, else 0."""
    first, last = TRIED[name]
    parts = first.count(".") + 1
    if _numbers(version, parts) < _numbers(first, parts):
        return -1
    parts = last.count(".") + 1
    return int(_numbers(version, parts) > _numbers(last, parts))


def _loaded(names: Sequence[str]) -> list[tuple[str, str]]:
    found = [(name, getattr(sys.modules.get(name), "__version__", None)) for name in names]
    return [(name, str(version)) for name, version in found if version is not None]


def check(backend: str) -> None:
    """Raise `EasyScaleError` if the loaded Keras, or its backend, is known not to work.

    Args:
        backend: String. Keras's name for the backend.
    """
    for name, version in _loaded(["keras", backend] if backend in TRIED else ["keras"]):
        if _compare(name, version) < 0:
            first, last = TRIED[name]
            raise EasyScaleError(
                f"{name} must be one of {first} to {last}. Received: {name} {version}. "
                f"Run: pip install '{name}>={first}'"
            )


def untried(backend: str) -> str | None:
    """Return a message if the loaded Keras, or its backend, is newer than the tested releases; else `None`.

    Args:
        backend: String. Keras's name for the backend.
    """
    found = [
        f"{name} {version} (tried: {' to '.join(TRIED[name])})"
        for name, version in _loaded(["keras", backend] if backend in TRIED else ["keras"])
        if _compare(name, version) > 0
    ]
    return (
        f"not tried with {' and '.join(found)}; `easyscale verify` compares your script with one process"
        if found
        else None
    )
