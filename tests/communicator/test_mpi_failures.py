"""How a job of real processes ends when something goes wrong on one of them.

The limit is for a hang: an exception ends all ranks at once, a rank that leaves is noticed by the others in about three
seconds, and starting takes one to three.
"""

import os
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launches import environment, mpirun, run

_SCRIPT = Path(__file__).with_name("failing.py")
_LIMIT = 60.0


def _fail(way, size=3, command=None):
    """Run the script on `size` ranks; return exit code, standard output and standard error of the ranks."""
    done = run([*(mpirun(size) if command is None else command), sys.executable, str(_SCRIPT), way], _LIMIT)
    return done.returncode, done.stdout, done.stderr


def _errors(text):
    """The lines that name one of EasyScale's errors. mpirun may write a line's beginning before them."""
    return re.findall(r"(?<![\w.])(?:Launch|Desync|Peer)Error: .*", text)


def test_a_script_without_failure_ends_with_code_0():
    code, out, err = _fail("nothing")
    assert (code, _errors(err)) == (0, [])
    assert sorted(out.split("\n")) == ["", *(f"rank {rank} came to its end" for rank in range(3))]


@pytest.mark.parametrize("way", ["exception_on_one_rank", "exception_in_a_collective_of_the_library"])
def test_an_exception_on_one_rank_ends_all_and_is_shown_once(way):
    code, out, err = _fail(way)
    assert code == 1
    assert err.count("Traceback (most recent call last)") == 1
    assert err.count("ValueError: only here") == 1
    assert _errors(err) == []
    assert out == ""


def test_an_exception_on_all_ranks_is_shown_once():
    code, _, err = _fail("exception_on_all_ranks")
    assert code == 1
    assert err.count("Traceback (most recent call last)") == 1
    assert err.count("ValueError: everywhere") == 1


def test_a_rank_does_not_end_the_job_before_its_error_has_been_read(tmp_path):
    errors = tmp_path / "errors"
    os.mkfifo(errors)
    reader = os.open(errors, os.O_RDONLY | os.O_NONBLOCK)
    ranks = f"exec {sys.executable} {_SCRIPT} exception_on_one_rank 2> {errors}"
    with subprocess.Popen([*mpirun(2), "sh", "-c", ranks], stderr=subprocess.DEVNULL, env=environment()) as job:
        select.select([reader], [], [], _LIMIT)
        time.sleep(1.0)
        assert job.poll() is None
        assert b"ValueError: only here" in os.read(reader, 1 << 16)
        assert job.wait(_LIMIT) == 1
    os.close(reader)


def test_an_error_of_easyscale_is_one_line_without_a_traceback():
    code, _, err = _fail("error_of_easyscale")
    assert code == 1
    assert _errors(err) == ["DesyncError: ranks must agree. Received: 1 and 2. Make them equal"]
    assert "Traceback" not in err


def test_a_rank_that_is_killed_in_shared_memory_ends_all():
    code, out, err = _fail("one_rank_is_killed_in_shared_memory")
    assert code == 128 + 9
    assert "exited on signal 9" in " ".join(err.split())
    assert out == ""


@pytest.mark.parametrize("way", ["one_rank_leaves", "one_rank_leaves_with_a_code", "one_rank_leaves_shared_memory"])
def test_a_rank_that_leaves_while_others_wait_is_named(way):
    code, out, err = _fail(way)
    assert code != 0
    assert "Traceback" not in err
    first = _errors(err)[0]
    assert re.fullmatch(
        r"PeerError: \[rank [02] of 3\] every rank must take part to the end\. "
        r"Rank 1 has ended while this rank (waits for|sends to) .*",
        first,
    )
    assert out == ""


def test_a_longer_message_than_expected_is_an_error_and_no_hang():
    code, _, err = _fail("longer_message_than_expected", size=2)
    assert code == 1
    assert "PeerError: [rank 1 of 2] MPI failed while this rank waits for rank 0: MPI_ERR_TRUNCATE" in err
    assert "Traceback" not in err


def test_vectors_of_different_lengths_are_an_error_and_no_hang():
    code, out, err = _fail("shorter_vector_on_one_rank")
    assert code == 1
    assert _errors(err)[0].startswith(("DesyncError: [rank ", "PeerError: [rank "))
    assert out == ""


def test_a_launcher_that_the_mpi_library_does_not_know_is_a_launch_error():
    started_by_srun = ["env", "SLURM_STEP_NUM_TASKS=4"]
    code, _, err = _fail("nothing", command=started_by_srun)
    assert code == 1
    (line,) = _errors(err)
    assert line.startswith("LaunchError: the launcher and the MPI library of mpi4py must be of one kind. ")
    assert "srun started 4 ranks, Open MPI" in line
    assert "found 1. Start with `easyscale launch`" in line
    assert "Traceback" not in err


def test_mpi4py_missing_under_mpirun_says_what_to_install():
    code, _, err = _fail("no_mpi4py", size=2)
    assert code == 1
    assert re.match(r"LaunchError: several ranks need mpi4py .* Run: pip install 'easyscale\[mpi\]'", _errors(err)[0])
    assert "Traceback" not in err


def test_mpi4py_missing_without_a_launcher_does_not_matter():
    done = run([sys.executable, "-c", _ALONE], _LIMIT, environment())
    assert (done.returncode, done.stdout) == (0, "0 of 1\n"), done.stderr


_ALONE = """
import sys
sys.modules["mpi4py"] = None
import easyscale
print(easyscale.rank(), "of", easyscale.size())
"""
