"""Errors and warnings of EasyScale.

    EasyScaleError
    ├── LaunchError          ranks were started in a way that does not let them connect
    ├── DesyncError          ranks differ where they must agree: exchange, gradients, weights
    ├── PeerError            another rank has left or failed while this one waits for it
    ├── SharedMemoryError    a node has too little room for the memory that its ranks share
    └── WorkerError          a worker started by `run` has raised an exception, or has ended
    EasyScaleWarning         something works, but probably not as intended

An invalid argument raises a plain `ValueError` or `TypeError`, as in Keras. Every message is one line: the rule, the
received value, and the remedy.
"""

import contextlib
import difflib
import functools
import math
import numbers
import sys
import sysconfig
import warnings
from pathlib import Path
from traceback import walk_tb
from types import TracebackType
from typing import Any

__all__ = [
    "DesyncError",
    "EasyScaleError",
    "EasyScaleWarning",
    "LaunchError",
    "PeerError",
    "SharedMemoryError",
    "WorkerError",
]


class EasyScaleError(Exception):
    """Base class of EasyScale's own errors.

    Example:

    >>> issubclass(LaunchError, EasyScaleError), issubclass(EasyScaleWarning, EasyScaleError)
    (True, False)
    """


class LaunchError(EasyScaleError):
    """Ranks were started in a way that does not let them connect.

    Example:

    >>> try:
    ...     communicator = easyscale.communicator.get()
    ... except LaunchError as error:
    ...     print(error)  # one line, with the remedy
    """


class DesyncError(EasyScaleError):
    """Ranks differ where they must agree. Raised on every rank.

    Example:

    >>> try:
    ...     model.fit(x, y, batch_size=easyscale.local_batch(64), callbacks=[Distribute("ring")])
    ... except DesyncError as error:
    ...     print(error)  # which ranks differ, and in what
    """


class PeerError(EasyScaleError):
    """Another rank has left or failed while this one waits for it.

    Args:
        message: String.
        left: Int. The rank that has left, if any. Defaults to `None`. Also an attribute.

    Example:

    >>> PeerError("rank 2 has ended", left=2).left
    2
    """

    def __init__(self, message: str, left: int | None = None):
        super().__init__(message)
        self.left = left


class LostError(PeerError):
    """Another rank has failed in a job that may continue without it, one started with `--elastic`.

    A rank that shows it to the user could not continue.
    """


class SharedMemoryError(EasyScaleError):
    """A node has too little room for the memory that its ranks share.

    Example:

    >>> try:
    ...     vector = easyscale.exchange.get("shared_memory").allocate(1 << 20, "float32")
    ... except SharedMemoryError as error:
    ...     print(error)  # how much is free, and how to get more
    """


class WorkerError(EasyScaleError):
    """A worker started by `run` has raised an exception, or has ended. Raised by `run`, not on workers.

    Args:
        message: String.
        rank: Int. The worker's rank. Defaults to `None`: it is not known. Also an attribute.

    Example:

    >>> WorkerError("rank 1 of 2 raised OSError", rank=1).rank
    1
    """

    def __init__(self, message: str, rank: int | None = None):
        super().__init__(message)
        self.rank = rank


class EasyScaleWarning(UserWarning):
    """Something works, but probably not as intended.

    Example:

    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore", EasyScaleWarning)  # or "error"
    """


@functools.cache
def show_in_one_line() -> None:
    """From now on, show EasyScale's uncaught errors and its warnings in one line, without a traceback.

    Applies to every `EasyScaleError` and `EasyScaleWarning`, and to a `ValueError` or `TypeError` that EasyScale raises
    for an argument; the latter are shown with the script's line that passed it.
    """
    previous_hook, previous_format = sys.excepthook, warnings.formatwarning

    def show(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        names = [frame.f_globals.get("__name__", "").partition(".")[0] for frame, _ in walk_tb(traceback)]
        if issubclass(kind, EasyScaleError):
            where = ""
        elif issubclass(kind, (ValueError, TypeError)) and names[-1:] == [__package__]:
            where = _where(traceback)
        else:
            previous_hook(kind, error, traceback)
            return
        sys.stderr.write(f"{kind.__name__}: {error}{where}\n")  # one write, so as not to interleave with other ranks

    def format_warning(message: Warning | str, category: type[Warning], *args: Any, **kwargs: Any) -> str:
        if issubclass(category, EasyScaleWarning):
            return f"{category.__name__}: {message}\n"
        return previous_format(message, category, *args, **kwargs)

    sys.excepthook, warnings.formatwarning = show, format_warning


def _where(traceback: TracebackType | None) -> str:
    """Return the innermost line of the user's code in a traceback."""
    own = [
        f" ({frame.f_code.co_filename}, line {number})"
        for frame, number in walk_tb(traceback)
        if frame.f_globals.get("__name__", "").partition(".")[0] != __package__
        and not _is_of_a_library(frame.f_code.co_filename)
    ]
    return own[-1] if own else ""


def _is_of_a_library(file: str) -> bool:
    # Libraries may be in several places at once: the user's, a virtual environment's, the system's.
    own_folder = {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts)
    return file.startswith(sysconfig.get_paths()["stdlib"]) or not own_folder


def tell(line: str) -> None:
    """Write a line to stderr if possible. A full disk or a closed stderr is not a reason to fail."""
    with contextlib.suppress(OSError, ValueError):  # ValueError: Python has closed it
        if sys.stderr is not None:
            print(line, file=sys.stderr, flush=True)


def is_number(value: Any, least: float | None = None, above: float | None = None, whole: bool = False) -> bool:
    """Return whether `value` is a finite number in a range; with `whole`, an integer.

    Example:

    >>> is_number(0.5, above=0), is_number(0, above=0), is_number("1", 0), is_number(2.5, 1, whole=True)
    (True, False, False, False)
    """
    is_real = isinstance(value, numbers.Integral if whole else numbers.Real)
    if not is_real or not abs(value) < math.inf:
        return False
    return (least is None or value >= least) and (above is None or value > above)


def unknown(argument: str, value: Any, valid: list[str], also: str = "") -> str:
    """Return the error message for a `value` that is not among the `valid` names, with the closest of them.

    Example:

    >>> unknown("exchange", "rnig", ["ring", "tree"])
    "`exchange` must be one of ['ring', 'tree']. Received: exchange='rnig'. Did you mean 'ring'?"
    """
    near = difflib.get_close_matches(str(value), valid, n=1)
    hint = f". Did you mean '{near[0]}'?" if near else ""
    return f"`{argument}` must be one of {valid}{also}. Received: {argument}={value!r}{hint}"
