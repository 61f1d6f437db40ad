"""Something to do once a module has been imported, or just before, whoever imports it, without importing it first."""

import sys
import types
from collections.abc import Callable, Collection, Sequence
from importlib.machinery import ModuleSpec
from typing import Any

__all__ = ["before_import", "when_imported"]


def when_imported(name: str, act: Callable[[], None], through: Collection[str] = ()) -> None:
    """Call `act` once module `name` has been imported: now, if it has been.

    Args:
        name: String. The module, at the top of a package: the modules in it are not looked for.
        act: Function.
        through: Names of modules that import `name` themselves. Where one of them is what imports it, `act` is called
            once that one has been imported. Defaults to none.

    Example:

    >>> when_imported("json", lambda: print("here"))
    here
    """
    if sys.modules.get(name) is not None:
        act()
    elif name not in sys.modules:  # `None` there says that it must not be imported
        sys.meta_path.insert(0, _Watching({name, *through}, frozenset(through), act))


def before_import(name: str, act: Callable[[], None]) -> None:
    """Call `act` before the code of module `name` is executed; never, if it has been. What it raises is `import`'s.

    Args:
        name: String. The module, at the top of a package: the modules in it are not looked for.
        act: Function.

    Example:

    >>> before_import("a_module_that_nobody_imports", lambda: print("here"))
    """
    if name not in sys.modules:
        sys.meta_path.insert(0, _Watching({name}, frozenset(), act, is_before=True))


class _Watching:
    """A finder of modules that finds none: it puts those to work that do, and sees when they begin and are done."""

    def __init__(self, names: set[str], through: frozenset[str], act: Callable[[], None], is_before: bool = False):
        self._names, self._through, self._act, self._is_before = names, through, act, is_before
        self._is_looking = False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self._names or self._is_looking:
            return None
        import importlib.util  # not before: `import easyscale` is to be quick

        self._is_looking = True
        try:
            spec = importlib.util.find_spec(name)  # perhaps for somebody who only wants to know whether it is there
        finally:
            self._is_looking = False
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def execute_and_act(module: types.ModuleType) -> None:
                if self._is_before:
                    self._end()
                execute(module)
                if name in self._through or not self._through & sys.modules.keys():
                    self._end()

            loader.exec_module = execute_and_act
        return spec

    def _end(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            self._act()
