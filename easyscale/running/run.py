"""`run`: a function on several workers."""

import os
import tempfile
from collections.abc import Callable
from typing import Any

from easyscale.running import options as of_launch
from easyscale.running.calling import call_of, check
from easyscale.running.folder import Folder
from easyscale.running.job import WORKER, Job
from easyscale.running.outcome import result_of

__all__ = ["run"]


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
    check(function)
    line = of_launch.arguments(n, options)
    plan = of_launch.planned(line, WORKER)
    call = call_of(function, args, options)
    shared = os.getcwd() if plan.hosts else None  # also those of a cluster's job
    with tempfile.TemporaryDirectory(prefix=".easyscale-run-", dir=shared, ignore_cleanup_errors=True) as path:
        folder = Folder(path)
        folder.give(call)
        with Job(folder, line) as job:
            code = _show(job)
        return result_of(code, folder.failures, folder.result, job.errors, plan.workers)


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
