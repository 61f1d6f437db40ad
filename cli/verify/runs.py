"""Starts the runs that `easyscale verify` compares: one process, then several, each for its first steps."""

import os
import re
import shlex
import sys
import tempfile

from easyscale import run_module
from easyscale.cli import reports
from easyscale.cli.launch import job, runtimes
from easyscale.cli.verify import verdict
from easyscale.cli.verify.captured import Captured
from easyscale.cli.verify.recorded import Recorded
from easyscale.errors import EasyScaleError
from easyscale.settings import Settings

__all__ = ["ScriptError", "verify"]

_INTERRUPTED = (129, 130, 141, 143)  # exit codes of a job that was ended by a signal


class ScriptError(EasyScaleError):
    """An error for a script that failed.

    Args:
        message: String.
        errors: List of strings. The end of what it wrote to stderr.
    """

    def __init__(self, message: str, errors: list[str]):
        super().__init__(message)
        self.errors = errors


def verify(
    start: list[str], ranks: int, steps: int, tolerance: float | None, verbose: bool, settings: Settings
) -> verdict.Verdict:
    """Run a script on one process and on several, and compare.

    Args:
        start: The script and its arguments.
        ranks: Int. Number of processes in the second run.
        steps: Int. Number of steps to compare in each `fit()`.
        tolerance: Float. See `verdict.compare`.
        verbose: Bool. Whether to show the script's output.
        settings: `Settings`. The settings of its processes.

    Raises:
        LaunchError: If there is no MPI.
        ScriptError: If the script fails.
        EasyScaleError: If there is nothing to compare.
    """
    mpi = runtimes.find()
    try:
        return _compare(mpi, start, ranks, steps, tolerance, verbose, settings, "float64")
    except ScriptError as error:
        if not any(re.search("float64|double", line) for line in error.errors):
            raise
    return _compare(mpi, start, ranks, steps, tolerance, verbose, settings, "float32")


def _compare(
    mpi: runtimes.Runtime,
    start: list[str],
    ranks: int,
    steps: int,
    tolerance: float | None,
    verbose: bool,
    settings: Settings,
    floatx: str,
) -> verdict.Verdict:
    with tempfile.TemporaryDirectory(prefix="easyscale-verify-") as folder:
        recorded: list[Recorded] = []
        for count in (1, ranks):
            run_folder = os.path.join(folder, str(count))
            os.mkdir(run_folder)
            command = run_module.command("easyscale.verify.script", run_folder, str(steps), floatx, *start)[1:]
            warnings = _run(mpi, command, start, count, verbose, settings)
            recorded.append(Recorded(run_folder, count))
            if recorded[0].is_empty:
                raise EasyScaleError(
                    "the script must exchange something to be verified. Received: nothing to compare from one process "
                    f"of {start[0]}. Give its `fit()` the callback `easyscale.callbacks.Distribute()`; if it only "
                    "starts other scripts, verify those"
                )
        reference, several = recorded
        return verdict.compare(reference, several, tolerance, warnings)


def _run(
    mpi: runtimes.Runtime, command: list[str], start: list[str], ranks: int, verbose: bool, settings: Settings
) -> list[str]:
    """Run the script with a progress display on stderr; return EasyScale's warnings."""
    import rich.console

    console = rich.console.Console(stderr=True)
    progress = reports.progress(console, is_counted=False, is_shown=console.is_terminal and not verbose)
    line = job.worker_command(command)
    if ranks > 1:
        line = mpi.command(ranks, line, [], {}, len(os.sched_getaffinity(0)))
    screen = Captured(show=verbose)
    where = f"{ranks} processes" if ranks > 1 else "one process"
    with progress:
        progress.add_task(f"{start[0]} on {where}", total=None)
        code = job.Job(mpi, line, screen, on_this_host=True, processes=ranks, settings=settings).run()
    if code in _INTERRUPTED:
        sys.exit(code)
    if code:
        received = f"{screen.error} (exit code {code})" if screen.error else f"exit code {code}"
        remedy = f"Try it by `{'python' if ranks == 1 else f'easyscale launch -n {ranks}'} {shlex.join(start)}`"
        raise ScriptError(f"the script must run on {where}. Received: {received}. {remedy}", screen.end_of_errors)
    return screen.warnings
