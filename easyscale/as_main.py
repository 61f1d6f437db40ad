"""Runs a script, or a module, in this process as Python would have."""

import os
import runpy
import sys
from collections.abc import Sequence

__all__ = ["run_as_main"]


def run_as_main(arguments: Sequence[str]) -> None:
    """Run what `python` would run with these arguments: a script, or `-m` and a module, and what it is given."""
    if arguments[0] == "-m":
        sys.argv = list(arguments[1:])
        sys.path[0] = os.getcwd()
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(arguments)
        is_folder = os.path.isdir(arguments[0])
        sys.path[0] = os.path.realpath(arguments[0] if is_folder else os.path.dirname(os.path.realpath(arguments[0])))
        runpy.run_path(arguments[0], run_name="__main__")
