"""What tests of the command line share: the real program, scripts, a fake mpirun, and a look for ranks left behind."""

import os
import stat
import subprocess
import sys
import textwrap

import click.testing
import pytest
from processes import Marked

PROGRAM = os.path.join(os.path.dirname(sys.executable), "easyscale")

VERSIONS = {
    "Open MPI 5": "mpirun (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/community/help/",
    "Open MPI 4": "mpirun (Open MPI) 4.1.6\n\nReport bugs to http://www.open-mpi.org/community/help/",
    "MPICH": "HYDRA build details:\n    Version:                                 5.0.2",
    "Intel MPI": "Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 20260626 (id: b44796a)",
}


@pytest.fixture
def program():
    """The path of the program `easyscale`."""
    return PROGRAM


@pytest.fixture
def script(tmp_path):
    """A function that writes a script and returns its path."""

    def write(text: str, name: str = "train.py") -> str:
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return str(path)

    return write


@pytest.fixture
def cli(monkeypatch):
    """A function that runs `easyscale` inside this process and returns click's result."""
    from easyscale.cli.main import main

    monkeypatch.delenv("EASYSCALE_EXCHANGE", raising=False)
    monkeypatch.delenv("EASYSCALE_REPLICATION", raising=False)
    return lambda *arguments: click.testing.CliRunner().invoke(main, [str(argument) for argument in arguments])


class Ranks(Marked):
    """Starts `easyscale` as a process, and finds all processes that came of it."""

    def __init__(self):
        super().__init__()
        self.started = []

    def start(self, *arguments, **options) -> subprocess.Popen:
        process = subprocess.Popen([PROGRAM, *map(str, arguments)], **{"env": self.environment, **options})
        self.started.append(process)
        return process

    def run(self, *arguments, timeout: float = 40, **options) -> subprocess.CompletedProcess:
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = self.start(*arguments, **{**pipes, **options})
        output, errors = process.communicate(timeout=3 * timeout)
        return subprocess.CompletedProcess(arguments, process.returncode, output, errors)


@pytest.fixture
def ranks():
    """Runs the real program; fails the test if a process of it stays behind."""
    started = Ranks()
    yield started
    for process in started.started:
        if process.poll() is None:
            process.kill()
            process.wait()
    left = started.wait_until_gone()
    assert not left, f"stayed behind: {left}"


@pytest.fixture
def fake_mpirun(tmp_path, monkeypatch):
    """A function that puts an mpirun of some kind beside this Python, and nothing else on `PATH`."""

    def make(kind: str | None) -> str:
        folder = tmp_path / "bin"
        folder.mkdir()
        monkeypatch.setattr(sys, "executable", str(folder / "python"))
        monkeypatch.setenv("PATH", str(tmp_path / "empty"))
        program = folder / "mpirun"
        if kind is not None:
            program.write_text(
                f"#!/bin/sh\nwhile IFS= read -r line; do echo \"$line\"; done <<'E'\n{VERSIONS.get(kind, kind)}\nE\n"
            )
            program.chmod(program.stat().st_mode | stat.S_IXUSR)
        return str(program)

    return make
