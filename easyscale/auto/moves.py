"""Renames and removals of files by a script that runs on every rank.

All ranks rename or remove the same file, and only the first one finds it. A file that the chief has written in place
of the others is the chief's to change, see `Files`. A file that every rank has written is gone for the second rank:
its own call counts as done then.
"""

import builtins
import contextlib
import functools
import io
import os
import pathlib
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from easyscale.auto.files import Files, is_in, name_of

__all__ = ["Moves"]

_MOVES = ((os, "rename"), (os, "replace"), (shutil, "move"))
_REMOVALS = ((os, "remove"), (os, "unlink"), (os, "rmdir"), (shutil, "rmtree"))
_TRIES = 100  # to remove a folder, as long as another rank takes files away as well


class Moves:
    """Replaces the functions that rename and remove files.

    Attributes:
        of_chief: The files that the chief writes; `None` until Keras is imported.
    """

    of_chief: Files | None = None

    def __init__(self) -> None:
        self._own: set[str] = set()  # this rank has written them, and has neither moved nor removed them
        self._process, self._inside = os.getpid(), threading.local()

    def install(self) -> None:
        """Replace the functions, and note the files that this rank opens for writing."""
        builtins.open = io.open = self._noting(builtins.open)
        for module, name in _MOVES:
            setattr(module, name, self._replaced(getattr(module, name), moves=True))
        for module, name in _REMOVALS:
            setattr(module, name, self._replaced(getattr(module, name), moves=False))
        if sys.version_info < (3, 11):  # there `pathlib` has taken these functions on import
            for name, method in (("rename", _renamed), ("replace", _replaced), ("unlink", _unlinked)):
                setattr(pathlib.Path, name, method)

    def note(self, path: Any) -> None:
        """Record that this rank has written a file or made a folder."""
        if (name := name_of(path)) is not None:
            self._own.add(name)

    def _noting(self, original: Callable) -> Callable:
        @functools.wraps(original)
        def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            result = original(file, mode, *args, **kwargs)
            if isinstance(mode, str) and not {*"wax+"}.isdisjoint(mode):
                self.note(file)
            return result

        return opened

    def _replaced(self, original: Callable, moves: bool) -> Callable:
        @functools.wraps(original)
        def replaced(*args: Any, **kwargs: Any) -> Any:
            given = [*args, *(kwargs[name] for name in ("path", "src", "dst") if name in kwargs)][: 1 + moves]
            is_at = any(name.endswith("dir_fd") and value is not None for name, value in kwargs.items())
            if is_at or len(given) <= moves or os.getpid() != self._process or getattr(self._inside, "one", False):
                return original(*args, **kwargs)
            if original.__name__ == "move" and os.path.isdir(given[1]):
                given[1] = os.path.join(given[1], os.path.basename(os.fspath(given[0]).rstrip(os.sep)))
            names = [name for name in map(name_of, given) if name is not None]
            if len(names) < len(given):
                return original(*args, **kwargs)
            act = functools.partial(original, *args, **kwargs)
            is_tree = original.__name__ == "rmtree"
            forgiving = functools.partial(self._remove_folder if is_tree else self._change, act, *names)
            with self._inside_one():
                if self.of_chief is not None and self.of_chief.has(names[0]):
                    self.of_chief.change(forgiving, *names)
                else:
                    forgiving()
            self._own.discard(names[0])
            self._own.update(names[1:])
            if is_tree:
                self._own = {name for name in self._own if not is_in(name, names[0])}
            return given[1] if original.__name__ == "move" else None

        return replaced

    @contextlib.contextmanager
    def _inside_one(self) -> Iterator[None]:
        """Return a context in which functions do what they did: `shutil.move` calls `os.rename`."""
        self._inside.one = True
        try:
            yield
        finally:
            self._inside.one = False

    def _change(self, act: Callable[[], Any], source: str, target: str | None = None) -> None:
        try:
            act()
        except (FileNotFoundError, shutil.Error):  # the latter: `shutil.move` into a folder that has it already
            is_there = target is None or os.path.lexists(target)
            if source not in self._own or os.path.lexists(source) or not is_there:
                raise

    def _remove_folder(self, act: Callable[[], Any], folder: str) -> None:
        is_known = folder in self._own or os.path.lexists(folder)
        for _ in range(_TRIES):
            try:
                act()
            except FileNotFoundError:  # another rank removes it as well
                if not is_known:
                    raise
            if not os.path.lexists(folder):
                return


def _renamed(path: pathlib.Path, target: Any) -> pathlib.Path:
    os.rename(path, target)
    return type(path)(target)


def _replaced(path: pathlib.Path, target: Any) -> pathlib.Path:
    os.replace(path, target)
    return type(path)(target)


def _unlinked(path: pathlib.Path, missing_ok: bool = False) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        if not missing_ok:
            raise
