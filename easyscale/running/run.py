"""`run`: calls a function on several workers."""

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

    For scripts and notebooks that run as a single process, even if it already uses TensorFlow. Workers get this
    process's working directory, `sys.path`, environment variables and Keras backend. Their output is shown as by
    `easyscale launch`, on `sys.stdout` and `sys.stderr`. Ctrl-C, or a notebook's interrupt, ends the workers, and so
    does the end of this process, for whatever reason.

    The function is sent by cloudpickle, with its arguments and the variables that it uses, in a folder that only this
    user can read and that is removed afterwards. With `hosts` the folder is in the working directory, which all hosts
    must share. Import modules that the function needs inside it, or at the top of the script.

    Args:
        function: Function. Called on each worker, as a script would run there.
        *args: Arguments of the function.
        n: Int. The number of workers. Defaults to `None`: one for each core of this process, as with `easyscale
            launch`.
        **options: The options of `easyscale launch`, with underscores: `exchange="ring"`, `stall_timeout=60`,
            `elastic=True`.

    Returns:
        The return value of the function on the chief, which must be picklable: numbers, NumPy arrays, a Keras model.

    Raises:
        ValueError: If an option is wrong or unknown.
        TypeError: If `function` is not callable, or it or an argument cannot be pickled.
        LaunchError: If this process is itself a worker, or there is no MPI.
        WorkerError: If a worker ends without an exception, or the exception cannot be unpickled here.
        Exception: The function's exception on a worker. Its `__cause__` is a `WorkerError` with the rank and the
            worker's traceback as text.

    Example:

    >>> easyscale.run(pow, 2, 10, n=1)
    1024
    """
    check(function)
    line = of_launch.arguments(n, options)
    plan = of_launch.planned(line, WORKER)
    call = call_of(function, args, options)
    shared = os.getcwd() if plan.hosts else None  # hosts may also come from a cluster's job
    with tempfile.TemporaryDirectory(prefix=".easyscale-run-", dir=shared, ignore_cleanup_errors=True) as path:
        folder = Folder(path)
        folder.give(call)
        with Job(folder, line) as job:
            code = _show(job)
        return result_of(code, folder.failures, folder.result, job.errors, plan.workers)


def _show(job: Job) -> int:
    """Return the job's exit code. An interrupt is forwarded to the workers, and raised after they have ended."""
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
