"""Plugin discovery: imports a package's modules and registers their classes."""

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
    """Import every module of a package, given by name, and return them."""
    path = importlib.import_module(package).__path__
    return tuple(importlib.import_module(module.name) for module in pkgutil.iter_modules(path, package + "."))


def classes_in(package: str) -> list[type]:
    """Return the classes in the modules of a package, without duplicates, in the order of modules."""
    found = [value for module in import_all(package) for value in vars(module).values()]
    return list({value: None for value in found if isinstance(value, type)})


def kinds_in(package: str, base: type) -> list[type[Any]]:
    """Return those of `classes_in` that inherit from `base` and are not abstract."""
    return [kind for kind in classes_in(package) if issubclass(kind, base) and not inspect.isabstract(kind)]


def make(argument: str, kind: type[T], arguments: Mapping[str, Any]) -> T:
    """Return an instance of a class requested by a user or a file, made with these arguments.

    Args:
        argument: String. The user's argument, for error messages.
        kind: The class.
        arguments: Dict. The class's arguments by name.

    Raises:
        ValueError: If the class does not take these arguments, needs others, or is abstract.
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
    """Classes that users select by name: those in the modules of a package, and custom ones.

    A class is known if it is registered or, with a `base`, if it inherits from that and defines a `name` itself.

    Args:
        argument: String. The user's argument, such as "exchange", for error messages.
        package: String. A package, whose modules are imported before a name is looked up.
        base: Class. Defaults to `None`: only registered classes are known.
        also: String. Alternatives to a name, such as " or an `Exchange`", for error messages. Defaults to `""`.
        besides: Valid names that are not those of classes and are handled elsewhere, such as `"auto"`. Defaults to
            none.

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
        """Return a decorator that registers a class under `name` and sets its attribute `name`."""

        def decorate(cls: type[T]) -> type[T]:
            cls.name = name  # type: ignore[attr-defined]
            self._registered[name] = cls
            return cls

        return decorate

    def classes(self) -> dict[str, type[T]]:
        """Return all classes by name, sorted."""
        import_all(self._package)
        named = {cls.__dict__["name"]: cls for cls in _subclasses(self._base) if cls.__dict__.get("name")}
        return dict(sorted({**named, **self._registered}.items()))

    def find(self, name: Any) -> type[T]:
        """Return the class with this name.

        Raises:
            ValueError: If there is none.
        """
        classes = self.classes()
        if not isinstance(name, str) or name not in classes:
            raise self.error(name, list(classes))
        return classes[name]

    def error(self, value: Any, valid: Sequence[str], argument: str | None = None) -> ValueError:
        """Return the error for a value that is not a valid name; `argument` defaults to that of this registry."""
        return ValueError(unknown(argument or self._argument, value, [*self._besides, *valid], self._also))


def _subclasses(base: type[T] | None) -> list[type[T]]:
    """Return all classes that inherit from a class, closest first."""
    found = [] if base is None else base.__subclasses__()
    for cls in found:  # grows during the loop
        found += cls.__subclasses__()
    return found
