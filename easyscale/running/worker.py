"""Entry point of each rank of a `run`: calls the function in the folder that is its argument."""

import os
import sys
import time
import traceback
from types import TracebackType
from typing import Any

from easyscale import communicator, launchers
from easyscale.errors import EasyScaleError, PeerError
from easyscale.running.folder import Call, Failure, Folder, load, pickled

__all__ = ["main"]


def main() -> None:
    """Call the function; write its result, if this is the chief, or its exception."""
    folder = Folder(sys.argv.pop())
    call, launcher = folder.call, launchers.detect()
    rank = launcher.rank if launcher is not None else 0
    folder.begin(rank)
    sys.path[:] = call.path
    os.chdir(call.directory)
    if call.backend is not None:
        os.environ["KERAS_BACKEND"] = call.backend
    hidden: list[Exception] = []
    _hide(hidden)
    try:
        result = _result(call)
        if _is_chief(rank):
            folder.keep_result(_pickled_result(result))
    except Exception as error:
        folder.keep_failure(_failure(rank, error))
        if call.is_quiet:
            hidden.append(error)
        raise


def _result(call: Call) -> Any:
    try:
        function, args = load(call.function)
    except Exception as error:
        raise EasyScaleError(
            f"`function` must be something that workers can load. Received: {call.name} "
            f"({type(error).__name__}: {error}). Define it in the script or notebook, or in a module on `sys.path`"
        ) from None
    return function(*args)


def _pickled_result(result: Any) -> bytes:
    try:
        return pickled(result)
    except Exception as error:
        raise TypeError(
            f"`function` must return something that can be pickled. Received: {type(result).__name__} "
            f"({type(error).__name__}: {error}). Return NumPy arrays, numbers, or a Keras model"
        ) from None


def _is_chief(rank: int) -> bool:
    # After workers have connected, a failure may have made another rank the chief.
    return communicator.get().is_chief if "easyscale.communicator.mpi" in sys.modules else rank == 0


def _failure(rank: int, error: Exception) -> Failure:
    inside = error.__traceback__
    while inside is not None and inside.tb_frame.f_code.co_filename == __file__:
        inside = inside.tb_next  # start at the function's own frames
    text = "".join(traceback.format_exception(type(error), error, inside))
    try:
        data = pickled(error)
    except Exception:
        data = None
    message = " ".join(f"{type(error).__name__}: {error}".split())
    return Failure(rank, time.time_ns(), isinstance(error, PeerError), message, text, data)


def _hide(hidden: list[Exception]) -> None:
    """Suppress the traceback of these exceptions at the end of this process: the caller of `run` shows them.

    Must be called before there is a communicator, whose own hook then ends the other ranks.
    """
    show = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if not any(error is one for one in hidden):
            show(kind, error, traceback)

    sys.excepthook = hook


if __name__ == "__main__":
    main()
