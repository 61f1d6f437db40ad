"""`run`: a function on several workers."""

import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from easyscale import launchers
from easyscale.errors import EasyScaleError, LaunchError, WorkerError
from easyscale.running import options as of_launch
from easyscale.running.folder import Call, Failure, Folder, load, pickled
from easyscale.running.job import Job
from easyscale.settings import Settings

__all__ = ["run"]

_WORKER = "easyscale.running.worker"


def run(function: Callable[..., Any], *args: Any, n: int | None = None, **options: Any) -> Any:
    """Call `function(*args)` on `n` workers, started by `easyscale launch`, and return what the chief's call returns.

    For scripts and notebooks that are one process themselves: also where TensorFlow is in use there already. Workers
    have this process's working directory, `sys.path`, environment variables and Keras backend. What they write is shown
    as `easyscale launch` shows it, in `sys.stdout` and `sys.stderr`. Ctrl-C, or a notebook's interrupt, ends the
    workers; and so does the end of this process, however it ends.

    The function travels by cloudpickle, with its arguments and the variables that it uses, in a folder that only this
    user can read and that is removed afterwards: in the working directory if there are `hosts`, which must have that in
    common. Import what it needs inside of it, or at the top of the script.

    Args:
        function: Function. Called on each worker, as a script would run there.
        *args: What it is called with.
        n: Int. The number of workers. Defaults to `None`: as `easyscale launch` has it, the cores of this process.
        **options: The options of `easyscale launch`, with underscores: `exchange="ring"`, `stall_timeout=60`,
            `elastic=True`.

    Returns:
        What the function returns on the chief, if it can be pickled: numbers, NumPy arrays, a Keras model.

    Raises:
        ValueError: If an option is wrong, or there is none of its name.
        TypeError: If the function is none, or it or an argument cannot be pickled.
        LaunchError: If this process is a worker itself; or if there is no MPI.
        WorkerError: If a worker has ended otherwise than by an exception, or the exception cannot be unpickled here.
        Exception: What the function has raised on a worker. Its `__cause__` is a `WorkerError` that has the rank, and
            the traceback of there as text.

    Example:

    >>> easyscale.run(pow, 2, 10, n=1)
    1024
    """
    if not callable(function):
        raise TypeError(
            f"`function` must be a function. Received: {type(function).__name__}. Write `easyscale.run(train, n=2)`"
        )
    _refuse_in_worker()
    line = of_launch.arguments(n, options)
    plan = of_launch.planned(line, _WORKER)
    name = getattr(function, "__qualname__", repr(function))
    is_quiet = not (options.get("elastic") or options.get("restarts") or options.get("log_dir"))
    call = Call(list(map(_absolute, sys.path)), os.getcwd(), _backend(), is_quiet, name, _pickled(function, args, name))
    shared = os.getcwd() if plan.hosts else None  # also those of a cluster's job
    with tempfile.TemporaryDirectory(prefix=".easyscale-run-", dir=shared, ignore_cleanup_errors=True) as path:
        folder = Folder(path)
        folder.give(call)
        command = [sys.executable, "-m", "easyscale", "launch", *line, "-m", _WORKER, path]
        with Job(path, command, _environment()) as job:
            code = _show(job)
        failures, result = folder.failures, folder.result
    if code and failures:
        _raise(failures[0], plan.workers)
    if code:
        raise WorkerError(f"all workers must come to the end of `function`. Received: {_ending(code, job.errors)}")
    return _loaded(result)


def _refuse_in_worker() -> None:
    launcher, told = launchers.detect(), Settings.read()
    size = 1 if launcher is None else launcher.size
    if size > 1 or told.output is not None or told.launched == os.getpid():
        rank = 0 if launcher is None else launcher.rank
        raise LaunchError(
            f"`run` must be called by a process that is no worker. Received: a call on rank {rank} of {size}. Call the "
            "function itself, or start this script without a launcher: python train.py"
        )


def _absolute(entry: str) -> str:
    return os.path.abspath(entry)  # "" is the working directory


def _backend() -> str | None:
    keras = sys.modules.get("keras")
    return None if keras is None else keras.config.backend()


def _pickled(function: Callable[..., Any], args: tuple, name: str) -> bytes:
    try:
        return pickled((function, args))
    except Exception as error:  # whatever an object's own way of being pickled raises
        raise TypeError(
            f"`function`, its arguments and the variables that it uses must be something that can be pickled. "
            f"Received: {name} ({' '.join(f'{type(error).__name__}: {error}'.split())}). Make what cannot be, such as "
            "open files, locks and datasets, inside of the function"
        ) from None


def _environment() -> dict[str, str]:
    """Return this process's environment, in which the launcher finds this package."""
    package = str(Path(__file__).parents[2])
    paths = [*filter(None, [os.environ.get("PYTHONPATH")]), package]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _show(job: Job) -> int:
    """Return the exit code of the job. An interrupt is passed on, and raised when the workers have ended."""
    interrupt: KeyboardInterrupt | None = None
    while True:
        try:
            code = job.show()
        except KeyboardInterrupt as error:
            interrupt = error
            job.interrupt()
            continue
        if interrupt is not None:
            raise interrupt
        return code


def _raise(failure: Failure, workers: int) -> None:
    where = f"rank {failure.rank} of {workers}"
    cause = WorkerError(f"raised on {where}:\n\n{failure.traceback}", failure.rank)
    try:
        error = None if failure.error is None else load(failure.error)
    except Exception:
        error = None
    if isinstance(error, Exception):
        raise error from cause
    raise WorkerError(f"{where} raised {failure.message}", failure.rank) from cause


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
