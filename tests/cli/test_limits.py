"""What the launcher cannot start is told of in one line, before `mpirun` fails in words of its own."""

import resource
import sys

import pytest
from launches import run

from easyscale.cli.launch import limits
from easyscale.errors import LaunchError


@pytest.mark.parametrize(("most", "processes", "need"), [(33, 2, 34), (63, 8, 64)])
def test_too_few_files_are_told_of_with_how_many_are_needed(monkeypatch, most, processes, need):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (most, most))
    message = (
        f"have {need} files open to start {processes} others. Received: a limit of {most}. Raise it: ulimit -n 1024"
    )
    with pytest.raises(LaunchError, match=message):
        limits.check(processes)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (need, need))
    limits.check(processes)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY,) * 2)
    limits.check(1000)


def test_files_of_other_hosts_are_not_counted_here(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 1024))
    limits.check(1000, on_this_host=False)
    with pytest.raises(LaunchError, match="have 5024 files open"):
        limits.check(1000)


def test_a_directory_that_is_gone_is_told_of(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import easyscale; easyscale.rank()")
    gone = tmp_path / "gone"
    shell = f"mkdir {gone}; cd {gone}; rmdir {gone}; exec {sys.executable} -m easyscale launch -n 2 {script}"
    done = run(["sh", "-c", shell], timeout=50)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "easyscale: a job must be started from a directory that exists. Received: one that was removed. "
        "Change to another one"
    ]
