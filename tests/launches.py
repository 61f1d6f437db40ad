"""Tests on real processes: one `mpirun` runs the checks of many files, and each check is a test of its own.

A file of checks, `*_on_ranks.py`, has functions `check_...()` without arguments, its own or those of another file that
it imports by name, which every rank calls in the order in which they stand. A test file says
`@over_ranks("exchange_on_ranks.py", sizes=[1, 2, 3, 4])`. Starting takes seconds, so ranks stay up for the next file
that wants as many. A check that fails or hangs ends the launch, and says on which rank, and where; the next file gets
another. With `EASYSCALE_TESTS_SECONDS=file` the seconds of each check, on rank 0, are appended to that file.
"""

import ast
import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

# The begin of a script that learns which rank it is from the launcher: it imports neither MPI nor EasyScale.
RANK = 'import os, sys, time; rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"])\n'
_RUN_CHECKS = Path(__file__).with_name("run_checks.py")


def mpirun(size: int) -> list[str]:
    """The command that starts `size` ranks with the MPI runtime beside this Python, without EasyScale's launcher."""
    found = shutil.which("mpirun", path=os.path.dirname(sys.executable)) or shutil.which("mpirun")
    assert found, "no mpirun beside this Python"
    return [found, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(size)]


def environment(**changes: str) -> dict[str, str]:
    """The environment of the ranks: the launcher's threads for one core each, quiet TensorFlow."""
    quiet = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "2"}
    quiet |= {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "0", "PYTHONUNBUFFERED": "1"}
    quiet["PYTHONFAULTHANDLER"] = "1"  # a rank that ends by SIGSEGV says where
    return {"HOME": "/tmp", **os.environ, **quiet, **changes}


def run(command: list[str], timeout: float, env: dict[str, str] | None = None) -> subprocess.CompletedProcess:
    """Run a command in its own process group and return what it printed.

    Args:
        command: List of strings.
        timeout: Float. Seconds on a quiet machine. After three times as many the group is ended, and the test fails.
        env: Dict. Defaults to `None`: `environment()`.
    """
    timeout *= 3
    with (
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
        _folder_in_shared_memory() as shared,
    ):
        env = {**_files_of_mpi(shared), **(env or environment())}
        process = subprocess.Popen(
            command, stdout=out, stderr=err, stdin=subprocess.DEVNULL, env=env, start_new_session=True
        )
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            code = None
            _say_where_they_are(process)
        finally:
            _end(process)
        out.seek(0)
        err.seek(0)
        done = subprocess.CompletedProcess(command, code, out.read(), err.read())
    if code is None:
        output = f"{done.stdout[-3000:]}\n{done.stderr[-20000:]}"
        pytest.fail(f"no end after {timeout} s: {command}\n{output}", pytrace=False)
    return done


def _say_where_they_are(process: subprocess.Popen) -> None:
    """Have each Python below a process say in which lines its threads are; this ends it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if "python" in child.name():
                    child.send_signal(signal.SIGABRT)  # see PYTHONFAULTHANDLER in `environment`
    time.sleep(1)


def _folder_in_shared_memory() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)


def _files_of_mpi(folder: str) -> dict[str, str]:
    """Variables that have ranks which are killed leave the MPI library's files in a folder."""
    names = ("OMPI_MCA_btl_sm_backing_directory", "OMPI_MCA_osc_sm_backing_directory")
    return dict.fromkeys((*names, "PRTE_MCA_prte_tmpdir_base", "I_MPI_SHM_FILE_PREFIX_4K"), folder)


def _end(process: subprocess.Popen) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)  # mpirun ends its ranks, which are in other groups
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


class Start(NamedTuple):
    """How Python is started on several ranks: a `name`, and a `command` in which `{size}` stands for their number."""

    name: str
    command: tuple[str, ...]


class Shape(NamedTuple):
    """How many workers there are, with how many servers or devices, and how they are started."""

    size: int
    servers: int = 0
    devices: int = 0
    start: Start | None = None
    is_full: bool = False

    def __str__(self) -> str:
        beside = f"+{self.servers}" if self.servers else f"x{self.devices}" if self.devices else ""
        return f"{self.size}{beside}{f'-{self.start.name}' if self.start else ''}{'-full' if self.is_full else ''}"

    @property
    def command(self) -> list[str]:
        """What starts Python on the ranks; a script follows."""
        if self.start is None:
            return [*mpirun(self.ranks), sys.executable]
        return [word.format(size=self.ranks) for word in self.start.command]

    @property
    def ranks(self) -> int:
        """The number of processes."""
        return self.size + self.servers

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that the ranks need."""
        variables = {"EASYSCALE_SERVERS": str(self.servers), "EASYSCALE_TESTS_FULL": str(int(self.is_full))}
        if self.devices:
            variables |= {"EASYSCALE_REPLICATION": "in_graph", "EASYSCALE_DEVICES": str(self.devices)}
        return variables


def over_ranks(
    checks: Path,
    sizes: list[int],
    limit: float = 300.0,
    servers: int = 0,
    devices: int = 0,
    starts: Sequence[Start | None] = (None,),
    full: Sequence[int] = (),
    has_rows: bool = False,
    only: Sequence[str] | None = None,
):
    """Parametrise a test over the checks in a file and over numbers of workers, with `servers` beside them.

    What `make test` runs shares one launch for each kind of ranks. A check that is marked `@full`, see `covering.py`,
    is left to `make test-all`.

    Args:
        checks: Path of the file.
        sizes: List of numbers of workers.
        limit: Float. Seconds that the file may take.
        servers: Int. The number of servers.
        devices: Int. If not 0, each worker is a process that drives so many, in-graph.
        starts: List of ways to start them. Defaults to the mpirun beside this Python.
        full: List of numbers of workers for which all checks are marked `full`.
        has_rows: Bool. Whether the file has fewer rows than its products, see `covering.py`; with all of them its
            checks are marked `full`.
        only: List of names, without `check_`. The checks that `make test` runs on these ranks, of a file that runs on
            several kinds. Defaults to `None`: all that are not marked `@full`.
    """
    names, quick = _checks_in(checks)
    if only is not None:
        assert {*only} <= {name.removeprefix("check_") for name in names}, only
        quick = [name for name in names if name.removeprefix("check_") in only]
    shapes = []
    for start in starts:
        for size in sizes:
            shape, chosen = Shape(size, servers, devices, start), tuple(quick)
            left = tuple(name for name in names if has_rows or name not in chosen)
            shapes += [(shape, chosen), (shape._replace(is_full=True), left)]
        shapes += [(Shape(size, servers, devices, start, is_full=True), tuple(names)) for size in full]
    params = [
        pytest.param(
            functools.partial(_outcome, checks, shape, limit, name, chosen),
            id=f"{name.removeprefix('check_')}-{shape}",
            marks=[
                pytest.mark.xdist_group(f"{checks.stem}-{shape}" if shape.is_full else f"ranks-{shape}"),
                pytest.mark.timeout(limit + 120),  # with the end of ranks that were up, and the start of others
                *[pytest.mark.full] * shape.is_full,
            ],
        )
        for shape, chosen in shapes
        for name in chosen
    ]
    return pytest.mark.parametrize("check", params)


def _checks_in(checks: Path) -> tuple[list[str], list[str]]:
    """Return the names of all checks of a file, and of those that are not marked `@full`."""
    names, quick = [], []
    for node in ast.parse(checks.read_text()).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("check_"):
            names.append(node.name)
            if not any(ast.unparse(decorator) == "full" for decorator in node.decorator_list):
                quick.append(node.name)
        elif isinstance(node, ast.ImportFrom):
            imported = [alias.name for alias in node.names if alias.name.startswith("check_")]
            names, quick = names + imported, quick + imported
    assert names, f"no checks in {checks}"
    return names, quick


class Ranks:
    """Processes that run one file of checks after the other, until a check fails.

    Args:
        shape: `Shape`.
    """

    def __init__(self, shape: Shape):
        self.shape, self._number = shape, 0
        self._open = contextlib.ExitStack()
        self._folder = Path(self._open.enter_context(tempfile.TemporaryDirectory()))
        self._output = self._open.enter_context(open(self._folder / "output", "a+"))  # noqa: SIM115
        shared = self._open.enter_context(_folder_in_shared_memory())
        command = [*shape.command, str(_RUN_CHECKS), str(self._folder), str(os.getpid())]
        env = {**_files_of_mpi(shared), **environment(**shape.variables)}
        streams = {"stdout": self._output, "stderr": self._output, "stdin": subprocess.DEVNULL}
        self._process = subprocess.Popen(command, env=env, start_new_session=True, **streams)

    def run(self, checks: Path, limit: float, names: Sequence[str] = ()) -> tuple[list[dict], str]:
        """Return what each rank reports of these checks of a file, or of all, and what has been written meanwhile."""
        self._number += 1
        begin = self._output.seek(0, os.SEEK_END)
        reports = [self._folder / f"{self._number}-{rank}.json" for rank in range(self.shape.ranks)]
        self._tell({"checks": str(checks), "limit": limit, "names": _ids(names or _checks_in(checks)[0])})
        end = time.monotonic() + limit + 30
        try:
            while self.is_alive and time.monotonic() < end and not all(map(_is_whole, reports)):
                time.sleep(0.02)
        finally:
            if not all(map(_is_whole, reports)):
                _end(self._process)
        self._output.seek(begin)
        return [json.loads(report.read_text()) if report.exists() else {} for report in reports], self._output.read()

    @property
    def is_alive(self) -> bool:
        """Whether the processes run."""
        return self._process.poll() is None

    def close(self) -> None:
        """Let the processes end."""
        self._number += 1
        self._tell({})
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(20)
        _end(self._process)
        self._open.close()

    def _tell(self, task: dict) -> None:
        path = self._folder / "task"
        path.write_text(json.dumps(task))
        path.rename(self._folder / f"{self._number}.json")


def _ids(names: Sequence[str]) -> dict[str, str]:
    """Return the id of the test of each check, given that the test of one of them is running."""
    running = os.environ.get("PYTEST_CURRENT_TEST", "").partition(" (")[0]
    texts = [name.removeprefix("check_") for name in names]
    mine = max((text for text in texts if f"[{text}-" in running), key=len, default="")
    return {name: running.replace(f"[{mine}-", f"[{text}-") for name, text in zip(names, texts, strict=True)}


def _is_whole(report: Path) -> bool:
    return report.exists() and json.loads(report.read_text()).get("ended", False)


_ranks: list[Ranks] = []  # those that are up: of one shape at a time


def close() -> None:
    """End the ranks that are up."""
    while _ranks:
        _ranks.pop().close()


@functools.cache
def _launch(checks: Path, shape: Shape, limit: float, names: tuple[str, ...]) -> tuple[list[dict], str]:
    if not (_ranks and _ranks[0].shape == shape and _ranks[0].is_alive):
        close()
        _ranks.append(Ranks(shape))
    reports, output = _ranks[0].run(checks, limit, names)
    if "EASYSCALE_TESTS_SECONDS" in os.environ:
        with open(os.environ["EASYSCALE_TESTS_SECONDS"], "a") as file:
            for name, seconds in reports[0].get("seconds", {}).items():
                file.write(f"{seconds:8.2f} {shape} {checks.parent.name}/{checks.stem} {name}\n")
    return reports, output


def _outcome(checks: Path, shape: Shape, limit: float, name: str, names: tuple[str, ...] = ()) -> None:
    reports, output = _launch(checks, shape, limit, names)
    for rank, report in enumerate(reports):
        if report.get(name, "") not in ("", "passed"):
            pytest.fail(f"rank {rank} of {shape.size}: {report[name]}", pytrace=False)
    for rank, report in enumerate(reports):
        if name not in report:
            pytest.fail(f"rank {rank} of {shape.size} did not come to {name}\n{output[-6000:]}", pytrace=False)
