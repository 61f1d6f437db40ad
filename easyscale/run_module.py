"""Runs a module of this package in another Python, as `python -m` does, but without the working directory.

`python -m` puts the working directory first on the search path, so files there, such as an unrelated `json.py`, would
shadow others. This file is started by its path instead, and removes its own folder from the search path before it
imports anything that could be shadowed.
"""

import sys

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    del sys.path[0]

import runpy

__all__ = ["command"]


def command(module: str, *arguments: str) -> list[str]:
    """Return the command line that runs a module; its first word is the Python interpreter.

    Example:

    >>> command("easyscale", "--version")[2:]
    ['easyscale', '--version']
    """
    return [sys.executable, __file__, module, *arguments]


if __name__ == "__main__":
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
