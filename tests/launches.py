"""Tests on real processes: one `mpirun` runs all the checks of a file, and each check is a test of its own.

A file of checks, `*_on_ranks.py`, has functions `check_...()` without arguments that every rank calls in the order in
which they stand. A test file says `@over_ranks("exchange_on_ranks.py", sizes=[1, 2, 3, 4])`. Starting takes seconds, so
what can share a launch does. A check that fails or hangs ends the launch, and says on which rank, and where.
"""

import ast
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

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
    return {"HOME": "/tmp", **os.environ, **quiet, **changes}


def run(command: list[str], timeout: float, env: dict[str, str] | None = None) -> subprocess.CompletedProcess:
    """Run a command in its own process group and return what it printed; after `timeout` seconds, end the group."""
    with (
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
        tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as shared,
    ):
        # Ranks that are killed leave the MPI library's files behind: here.
        folders = (
            "OMPI_MCA_btl_sm_backing_directory",
            "OMPI_MCA_osc_sm_backing_directory",
            "PRTE_MCA_prte_tmpdir_base",
            "I_MPI_SHM_FILE_PREFIX_4K",
        )
        env = {**dict.fromkeys(folders, shared), **(env or environment())}
        process = subprocess.Popen(
            command, stdout=out, stderr=err, stdin=subprocess.DEVNULL, env=env, start_new_session=True
        )
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)  # mpirun ends its ranks, which are in other groups
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        out.seek(0)
        err.seek(0)
        done = subprocess.CompletedProcess(command, code, out.read(), err.read())
    if code is None:
        pytest.fail(f"no end after {timeout} s: {command}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}", pytrace=False)
    return done


class Start(NamedTuple):
    """How Python is started on several ranks: a `name`, and a `command` in which `{size}` stands for their number."""

    name: str
    command: tuple[str, ...]


def over_ranks(
    checks: Path,
    sizes: list[int],
    limit: float = 120.0,
    servers: int = 0,
    devices: int = 0,
    starts: Sequence[Start | None] = (None,),
):
    """Parametrise a test over the checks in a file and over numbers of workers, with `servers` beside them.

    With `devices` each of them is a process that drives so many, in-graph. `starts` are the ways to start them;
    by default the mpirun beside this Python.
    """
    tree = ast.parse(checks.read_text())
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")]
    assert names, f"no checks in {checks}"
    params = [
        pytest.param(
            functools.partial(_outcome, checks, size, servers, devices, limit, start, name),
            id=f"{name.removeprefix('check_')}-{size}"
            + (f"+{servers}" if servers else f"x{devices}" if devices else "")
            + (f"-{start.name}" if start else ""),
            marks=[
                pytest.mark.xdist_group(f"{checks.stem}-{size}-{servers}-{devices}-{start and start.name}"),
                pytest.mark.timeout(limit + 60),
            ],
        )
        for start in starts
        for size in sizes
        for name in names
    ]
    return pytest.mark.parametrize("check", params)


@functools.cache
def _launch(
    checks: Path, size: int, servers: int, devices: int, limit: float, start: Start | None
) -> tuple[list[dict], str]:
    variables = {"EASYSCALE_SERVERS": str(servers)}
    if devices:
        variables |= {"EASYSCALE_REPLICATION": "in_graph", "EASYSCALE_DEVICES": str(devices)}
    python = [*mpirun(size + servers), sys.executable]
    if start is not None:
        python = [word.format(size=size + servers) for word in start.command]
    with tempfile.TemporaryDirectory() as folder:
        command = [*python, str(_RUN_CHECKS), str(checks), folder, str(limit)]
        done = run(command, limit + 30, environment(**variables))
        reports = [Path(folder, f"{rank}.json") for rank in range(size + servers)]
        return [json.loads(one.read_text()) if one.exists() else {} for one in reports], done.stdout + done.stderr


def _outcome(
    checks: Path,
    size: int,
    servers: int,
    devices: int,
    limit: float,
    start: Start | None,
    name: str,
) -> None:
    reports, output = _launch(checks, size, servers, devices, limit, start)
    for rank, report in enumerate(reports):
        if report.get(name, "") not in ("", "passed"):
            pytest.fail(f"rank {rank} of {size}: {report[name]}", pytrace=False)
    for rank, report in enumerate(reports):
        if name not in report:
            pytest.fail(f"rank {rank} of {size} did not come to {name}\n{output[-6000:]}", pytrace=False)
