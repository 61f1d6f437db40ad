"""What stands in the files of a folder, so that a new file is all that something new takes."""

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, Generic, TypeVar

from easyscale.errors import unknown

__all__ = ["Registry", "classes_in", "import_all", "kinds_in", "make"]

T = TypeVar("T")


@functools.cache
def import_all(package: str) -> tuple[ModuleType, ...]:
    """Import every module of a package, by its name, and return them."""
    path = importlib.import_module(package).__path__
    return tuple(importlib.import_module(module.name) for module in pkgutil.iter_modules(path, package + "."))


def classes_in(package: str) -> list[type]:
    """Return the classes that the modules of a package have, each once, in the order of modules."""
    found = [value for module in import_all(package) for value in vars(module).values()]
    return list({value: None for value in found if isinstance(value, type)})


def kinds_in(package: str, base: type) -> list[type[Any]]:
    """Return those of `classes_in` that are of a base class and can be made."""
    return [kind for kind in classes_in(package) if issubclass(kind, base) and not inspect.isabstract(kind)]


def make(argument: str, kind: type[T], arguments: Mapping[str, Any]) -> T:
    """Return an instance of a class that a user, or a file, asks for, with these arguments.

    Args:
        argument: String. What it was given to, for messages of errors.
        kind: The class.
        arguments: Dict. By their names.

    Raises:
        ValueError: If it does not take them, needs more, or is only a base of others.
    """
    problem = "a class with methods to be written" if inspect.isabstract(kind) else None
    try:
        taken = inspect.signature(kind)
        taken.bind(**arguments)
    except TypeError as error:
        problem = problem or f"{error}; it is {kind.__name__}{taken}"
    if problem:
        raise ValueError(
            f"`{argument}` must be one that can be made. Received: {kind.__name__} with {dict(arguments)}: {problem}. "
            "Pass an instance"
        )
    return kind(**arguments)


class Registry(Generic[T]):
    """The classes that users ask for by name: those in the files of a package, and the user's own.

    A class is known if it is registered; with a `base`, if it inherits from that and has a `name` of its own.

    Args:
        argument: String. What a name is given to, as "exchange": for messages of errors.
        package: String. The package, whose modules are imported before a name is looked up.
        base: Class. Defaults to `None`: only what is registered is known.
        also: String. What may be given instead of a name, as " or an `Exchange`". Defaults to `""`.
        besides: Names that stand for none of the classes, and are given elsewhere, as `"auto"`. Defaults to none.

    Example:

    >>> Registry("vowel", "easyscale.layout").find("y")
    Traceback (most recent call last):
    ValueError: `vowel` must be one of []. Received: vowel='y'
    """

    def __init__(
        self, argument: str, package: str, base: type[T] | None = None, also: str = "", besides: Sequence[str] = ()
    ):
        self._argument, self._package, self._base, self._also = argument, package, base, also
        self._besides = besides
        self._registered: dict[str, type[T]] = {}

    def register(self, name: str) -> Callable[[type[T]], type[T]]:
        """Return a decorator that makes a class known under `name`, which becomes its attribute `name`."""

        def decorate(cls: type[T]) -> type[T]:
            cls.name = name  # type: ignore[attr-defined]
            self._registered[name] = cls
            return cls

        return decorate

    def classes(self) -> dict[str, type[T]]:
        """Return all classes, by their names, sorted."""
        import_all(self._package)
        named = {cls.__dict__["name"]: cls for cls in _subclasses(self._base) if cls.__dict__.get("name")}
        return dict(sorted({**named, **self._registered}.items()))

    def find(self, name: Any) -> type[T]:
        """Return the class of this name.

        Raises:
            ValueError: If there is none.
        """
        classes = self.classes()
        if not isinstance(name, str) or name not in classes:
            raise self.error(name, list(classes))
        return classes[name]

    def error(self, value: Any, valid: Sequence[str], argument: str | None = None) -> ValueError:
        """Return the error for a value that is not among the valid names, by default of this registry's argument."""
        return ValueError(unknown(argument or self._argument, value, [*self._besides, *valid], self._also))


def _subclasses(base: type[T] | None) -> list[type[T]]:
    """Return all classes that inherit from one, those that are nearest first."""
    found = [] if base is None else base.__subclasses__()
    for cls in found:  # which grows meanwhile
        found += cls.__subclasses__()
    return found
