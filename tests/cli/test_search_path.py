"""Files of the working directory are not executed: whoever can write to it could have programs run as another user."""

import os
import subprocess
import sys

import pytest

NAMES = ["json", "easyscale", "runpy", "resource", "select", "selectors", "socket", "subprocess", "tempfile", "click"]
NAMES += ["numpy", "psutil", "mpi4py", "cloudpickle", "ctypes", "contextlib", "functools", "typing", "dataclasses"]

SUMS = """
import numpy as np, easyscale
easyscale.exchange.get("ring").allreduce(np.ones(10) / easyscale.size())
print("done")
"""

RUN = """
import easyscale

def double(x):
    return 2 * x

print(easyscale.run(double, 2, n=2), easyscale.run(double, 3, n=1))
"""


@pytest.fixture
def others(tmp_path):
    """A working directory of somebody who waits for modules to be imported from it."""
    folder = tmp_path / "others"
    folder.mkdir()
    hit = tmp_path / "hit"
    for name in NAMES:
        (folder / f"{name}.py").write_text(f"open({str(hit)!r}, 'a').write('{name} ')\nraise SystemExit(9)\n")
    yield folder
    assert not hit.exists(), hit.read_text()


@pytest.mark.parametrize(
    ("command", "needs_script"),
    [
        (["launch", "-n", "2"], True),
        (["launch", "-n", "2", "--auto"], True),
        (["launch", "-n", "2", "--elastic", "--respawn", "--spares", "1"], True),
        (["verify", "-n", "2"], True),
        (["bench", "exchange", "-n", "2", "--sizes", "4KB", "--exchanges", "ring"], False),
        (
            [
                "plan",
                "--weights",
                "1M",
                "--compute",
                "10ms",
                "--ranks",
                "2",
                "--bandwidth",
                "1Gbit",
                "--latency",
                "20us",
                "--compression",
                "fp16",
            ],
            False,
        ),
    ],
    ids=["launch", "auto", "spares", "verify", "bench", "plan"],
)
def test_a_command_executes_nothing_of_the_working_directory(ranks, script, others, command, needs_script):
    done = ranks.run(*command, *([script(SUMS)] if needs_script else []), cwd=others, timeout=60)
    assert done.returncode == 0, done.stderr


def test_run_executes_nothing_of_the_working_directory(ranks, script, others):
    done = subprocess.run(
        [sys.executable, script(RUN)], cwd=others, env=ranks.environment, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "4 6\n", done.stderr


def test_a_module_of_the_user_is_found_in_the_working_directory(ranks, tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "train.py").write_text(
        "import package.part, sys, easyscale\nprint(easyscale.rank(), sys.argv[1:])"
    )
    (tmp_path / "package" / "part.py").write_text("")
    for options in ([], ["--auto"]):
        done = ranks.run("launch", "-n", "2", *options, "-m", "package.train", "-x", cwd=tmp_path)
        assert sorted(done.stdout.splitlines()) == ["0 ['-x']", "[1] 1 ['-x']"], done.stderr


def test_a_run_of_a_module_has_the_search_path_of_the_environment(tmp_path):
    (tmp_path / "other.py").write_text("import sys\nprint(sys.argv[1:], __name__)\n")
    from easyscale import run_module

    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(run_module.command("other", "a", "-b"), env=environment, capture_output=True, text=True)
    assert done.stdout == "['a', '-b'] __main__\n", done.stderr
