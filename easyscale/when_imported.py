"""Import hooks: call a function after a module has been imported, or just before, without importing it."""

import sys
import types
from collections.abc import Callable, Collection, Sequence
from importlib.machinery import ModuleSpec
from typing import Any

__all__ = ["before_import", "when_imported"]


def when_imported(name: str, act: Callable[[], None], through: Collection[str] = ()) -> None:
    """Call `act` after module `name` has been imported: now, if it has been already.

    Args:
        name: String. The module, which must be top-level.
        act: Function.
        through: Names of modules that import `name` themselves. If one of them imports it, `act` is called after that
            one has been imported. Defaults to none.

    Example:

    >>> when_imported("json", lambda: print("here"))
    here
    """
    if sys.modules.get(name) is not None:
        act()
    elif name not in sys.modules:  # `None` there means that it must not be imported
        sys.meta_path.insert(0, _Watching({name, *through}, frozenset(through), act))


def before_import(name: str, act: Callable[[], None]) -> None:
    """Call `act` before the code of module `name` runs; never, if it has already run. `import` raises its exceptions.

    Args:
        name: String. The module, which must be top-level.
        act: Function.

    Example:

    >>> before_import("a_module_that_nobody_imports", lambda: print("here"))
    """
    if name not in sys.modules:
        sys.meta_path.insert(0, _Watching({name}, frozenset(), act, is_before=True))


class _Watching:
    """A meta path finder that delegates to the other finders, and hooks into the execution of the module found."""

    def __init__(self, names: set[str], through: frozenset[str], act: Callable[[], None], is_before: bool = False):
        self._names, self._through, self._act, self._is_before = names, through, act, is_before
        self._is_looking = False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self._names or self._is_looking:
            return None
        import importlib.util  # lazy, to keep `import easyscale` fast

        self._is_looking = True
        try:
            spec = importlib.util.find_spec(name)  # the caller may only check that the module exists
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
