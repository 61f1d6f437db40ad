"""The outcome of a `run` after its workers have ended: the chief's result, or a worker's exception."""

import signal
from collections.abc import Sequence
from typing import Any

from easyscale.errors import EasyScaleError, WorkerError
from easyscale.running.folder import Failure, load

__all__ = ["result_of"]


def result_of(code: int, failures: Sequence[Failure], result: bytes | None, errors: str, workers: int) -> Any:
    """Return the function's result on the chief, or raise its exception on a worker.

    Args:
        code: Int. The exit code of the launcher.
        failures: The function's failures, in the order of `Folder.failures`.
        result: Bytes. The chief's pickled result; `None` if the function has not returned there.
        errors: String. The end of the stderr of the launcher and its workers.
        workers: Int. The number of workers.
    """
    if code and failures and not failures[0].is_of_another:
        _raise(failures[0], workers)
    if code:
        raise WorkerError(f"all workers must come to the end of `function`. Received: {_ending(code, errors)}") from (
            _cause(failures[0], workers) if failures else None
        )
    return _loaded(result)


def _raise(failure: Failure, workers: int) -> None:
    where = f"rank {failure.rank} of {workers}"
    cause = _cause(failure, workers)
    try:
        error = None if failure.error is None else load(failure.error)
    except Exception:
        error = None
    if isinstance(error, Exception):
        raise error from cause
    raise WorkerError(f"{where} raised {failure.message}", failure.rank) from cause


def _cause(failure: Failure, workers: int) -> WorkerError:
    return WorkerError(f"raised on rank {failure.rank} of {workers}:\n\n{failure.traceback}", failure.rank)


def _ending(code: int, errors: str) -> str:
    """Describe how a job ended: the launcher's last message, if there is one, else the signal or exit code."""
    said = [line.partition(": ")[2] for line in errors.splitlines() if line.startswith("easyscale: ")]
    if said:
        return said[-1]
    if code > 128 and code - 128 in set(signal.Signals):
        return f"the end by signal {code - 128} ({signal.strsignal(code - 128)})"
    return f"the exit code {code}"


def _loaded(result: bytes | None) -> Any:
    if result is None:  # the function called `sys.exit`
        return None
    try:
        return load(result)
    except Exception as error:  # an object's own unpickling may raise anything
        raise EasyScaleError(
            "what `function` returns must be something that this process can load. Received: "
            f"{type(error).__name__}: {error}. Return NumPy arrays or numbers"
        ) from None
