"""The `update` that a user requests: a name, or an instance with arguments."""

from typing import Any, TypeAlias

from easyscale.discovery import Registry, make
from easyscale.errors import unknown
from easyscale.update.base import Update
from easyscale.update.local_steps import LocalSteps

__all__ = ["Identifier", "Kind", "available", "get", "serialize"]

Kind: TypeAlias = type[Update] | LocalSteps  # has a name, and creates an optimizer's update

Identifier: TypeAlias = str | dict | Kind | type[LocalSteps] | None

_FOLDER = __name__.rpartition(".")[0]

_updates: Registry[Update] = Registry("update", _FOLDER, base=Update)
_with_arguments: Registry[LocalSteps] = Registry("update", _FOLDER, base=LocalSteps)


def available() -> dict[str, type[Update] | type[LocalSteps]]:
    """Return the updates that can be requested, sorted by name: built-in ones and the user's own.

    Example:

    >>> available()["sharded"]
    <class 'easyscale.update.sharded.ShardedUpdate'>
    """
    found: dict[str, type[Update] | type[LocalSteps]] = {**_updates.classes(), **_with_arguments.classes()}
    return dict(sorted(found.items()))


def get(identifier: Identifier) -> Kind | None:
    """Return a class or instance that creates an update; `None` for `None`: one will be chosen.

    Args:
        identifier: The name of an update, an instance such as `LocalSGD(every=16)`, a result of `serialize`, a class,
            or `None`.

    Raises:
        ValueError: If no update has this name.

    Example:

    >>> get("local_sgd")
    LocalSGD(every=16, start_step=0)
    """
    if identifier is None or isinstance(identifier, LocalSteps):
        return identifier
    arguments: dict[str, Any] = {}
    found: Any = identifier
    if isinstance(identifier, dict) and "name" in identifier:
        arguments = {name: value for name, value in identifier.items() if name != "name"}
        found = identifier["name"]
    if isinstance(found, str):
        found = available().get(found, found)
    if isinstance(found, type) and issubclass(found, LocalSteps):
        return make("update", found, arguments)
    if isinstance(found, type) and issubclass(found, Update):
        return found
    raise ValueError(unknown("update", found, list(available())))


def serialize(identifier: Identifier) -> str | dict | None:
    """Return a serializable form from which `get` makes the same.

    Example:

    >>> serialize(get("local_sgd"))
    {'name': 'local_sgd', 'every': 16, 'start_step': 0}
    """
    if identifier is None or isinstance(identifier, str | dict):
        return identifier
    if isinstance(identifier, LocalSteps):
        return {"name": identifier.name, **identifier.get_config()}
    return identifier.name
