"""Running of a script or module in this process, as `python` would."""

import functools
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from types import TracebackType

__all__ = ["run_as_main"]


def run_as_main(arguments: Sequence[str]) -> None:
    """Run these arguments as `python` would: a script, or `-m` and a module, then its own arguments.

    The traceback of an exception starts with the script, as with `python`.
    """
    sys.excepthook = functools.partial(_show, sys.excepthook)
    if arguments[0] == "-m":
        sys.argv = list(arguments[1:])
        sys.path.insert(0, os.getcwd())
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(arguments)
        is_folder = os.path.isdir(arguments[0])
        folder = arguments[0] if is_folder else os.path.dirname(os.path.realpath(arguments[0]))
        sys.path.insert(0, os.path.realpath(folder))
        runpy.run_path(arguments[0], run_name="__main__")


def _show(hook: Callable, kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    own = os.path.dirname(__file__) + os.sep, "<frozen runpy>", runpy.__file__
    while traceback is not None and traceback.tb_frame.f_code.co_filename.startswith(own):
        traceback = traceback.tb_next
    hook(kind, error.with_traceback(traceback), traceback)
