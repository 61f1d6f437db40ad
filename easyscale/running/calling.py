"""The call that `run` sends to workers: a function and its arguments, checked and pickled."""

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from easyscale import launchers
from easyscale.errors import LaunchError
from easyscale.running.folder import Call, pickled
from easyscale.settings import Settings

__all__ = ["call_of", "check"]


def check(function: Callable[..., Any]) -> None:
    """Raise unless `function` is callable and this process is not itself a worker."""
    if not callable(function):
        raise TypeError(
            f"`function` must be a function. Received: {type(function).__name__}. Write `easyscale.run(train, n=2)`"
        )
    launcher, told = launchers.detect(), Settings.read()
    size = 1 if launcher is None else launcher.size
    if size > 1 or told.output is not None or told.launched == os.getpid():
        rank = 0 if launcher is None else launcher.rank
        raise LaunchError(
            f"`run` must be called by a process that is no worker. Received: a call on rank {rank} of {size}. Call the "
            "function itself, or start this script without a launcher: python train.py"
        )


def call_of(function: Callable[..., Any], args: tuple, options: Mapping[str, Any]) -> Call:
    """Return the call that workers make.

    Args:
        function: Function.
        args: The function's arguments.
        options: Options of `easyscale launch`. With some of them, workers print the function's exceptions themselves.

    Raises:
        TypeError: If the function or an argument cannot be pickled.
    """
    name = getattr(function, "__qualname__", repr(function))
    is_quiet = not (options.get("elastic") or options.get("restarts") or options.get("log_dir"))
    path = list(map(os.path.abspath, sys.path))  # "" is the working directory
    return Call(path, os.getcwd(), _backend(), is_quiet, name, _pickled(function, args, name))


def _backend() -> str | None:
    keras = sys.modules.get("keras")
    return None if keras is None else keras.config.backend()


def _pickled(function: Callable[..., Any], args: tuple, name: str) -> bytes:
    try:
        return pickled((function, args))
    except Exception as error:  # an object's own `__reduce__` may raise anything
        raise TypeError(
            f"`function`, its arguments and the variables that it uses must be something that can be pickled. "
            f"Received: {name} ({' '.join(f'{type(error).__name__}: {error}'.split())}). Make what cannot be, such as "
            "open files, locks and datasets, inside of the function"
        ) from None
