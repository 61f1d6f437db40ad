"""What comes of a call of `run`, when its workers have ended: a result, or what one of them has raised."""

import signal
from collections.abc import Sequence
from typing import Any

from easyscale.errors import EasyScaleError, WorkerError
from easyscale.running.folder import Failure, load

__all__ = ["result_of"]


def result_of(code: int, failures: Sequence[Failure], result: bytes | None, errors: str, workers: int) -> Any:
    """Return what the function has returned on the chief; raise what it has raised on a worker.

    Args:
        code: Int. The exit code of the launcher.
        failures: What the function has raised, in the order of `Folder.failures`.
        result: Bytes. What it has returned on the chief, pickled; `None` if it has not.
        errors: String. What the launcher and its workers have written to stderr last.
        workers: Int. How many there were.
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
    """Return how a job has ended that has raised nothing: what the launcher says of it, if it does."""
    said = [line.partition(": ")[2] for line in errors.splitlines() if line.startswith("easyscale: ")]
    if said:
        return said[-1]
    if code > 128 and code - 128 in set(signal.Signals):
        return f"the end by signal {code - 128} ({signal.strsignal(code - 128)})"
    return f"the exit code {code}"


def _loaded(result: bytes | None) -> Any:
    if result is None:  # it has ended by `sys.exit`
        return None
    try:
        return load(result)
    except Exception as error:  # whatever an object's own way of being loaded raises
        raise EasyScaleError(
            "what `function` returns must be something that this process can load. Received: "
            f"{type(error).__name__}: {error}. Return NumPy arrays or numbers"
        ) from None
