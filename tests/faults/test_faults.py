"""A rank fails: the job ends, says who it was, and leaves nothing. The long version is `benchmarks/faults.py`."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launches import environment, mpirun, run

sys.path.insert(0, str(Path(__file__).parent))

import harness  # noqa: E402

SUMS = Path(__file__).with_name("sums.py")
HOST = os.uname().nodename


def sums(fault, folder, *options, exchange="ring"):
    done = harness.launch(SUMS, [fault, str(folder), exchange], folder, "-n", "3", *options)
    assert done.code is not None, f"hangs\n{done.errors}"
    assert (done.orphans, done.left) == ([], []), done.errors
    return done


@pytest.mark.parametrize(
    ("fault", "code", "said"),
    [
        ("sigkill", 137, f"easyscale: rank 1 on {HOST} was killed by signal 9 (Killed)"),
        ("exit3", 3, f"easyscale: rank 1 on {HOST} ended with exit code 3 while other ranks still needed it"),
        ("exit0", 1, f"easyscale: rank 1 on {HOST} ended with exit code 0 while other ranks still needed it"),
    ],
)
def test_a_rank_that_ends_too_early_ends_the_job_by_its_own_exit_code(tmp_path, fault, code, said):
    done = sums(fault, tmp_path)
    assert done.code == code
    assert done.errors.splitlines()[-1] == said


def test_a_rank_that_has_done_its_part_may_end(tmp_path):
    done = sums("ends in time", tmp_path)
    assert (done.code, done.errors) == (0, "")


@pytest.mark.parametrize(
    "exchange",
    [pytest.param("ring", marks=pytest.mark.full), "shared_memory", pytest.param("mpi", marks=pytest.mark.full)],
)
def test_a_stopped_rank_is_named_and_the_job_ended(tmp_path, exchange):
    done = sums("sigstop", tmp_path, "--stall-timeout", "4", exchange=exchange)
    assert done.code == 124
    lines = done.errors.splitlines()
    assert "easyscale: the job stands still: 2 of 3 ranks wait for others" in lines
    (line,) = [text for text in lines if text.startswith("  rank 1 ")]
    assert line.startswith(f"  rank 1 on {HOST} does not wait, for ")
    assert "is stopped (state T) and cannot say where" in line
    assert lines[-1] == "easyscale: the job was ended because ranks have waited for rank 1 for too long"


def test_a_first_step_that_is_traced_slowly_is_no_stall(tmp_path):
    done = harness.launch(SUMS.with_name("slow_trace.py"), [], tmp_path, "-n", "2", "--stall-timeout", "4", limit=120)
    assert (done.code, done.output) == (0, "[1] traces\n"), done.errors
    assert "stands still" not in done.errors


def test_a_rank_that_others_wait_for_shows_where_it_is(tmp_path):
    done = sums("sleeps", tmp_path, "--stall-timeout", "4")
    assert done.code == 124
    assert "in wait_at_this_line" in done.errors
    assert done.errors.count("stands still") == 1


def test_ranks_that_wait_for_each_other_are_all_named(tmp_path):
    done = sums("another collective", tmp_path, "--stall-timeout", "4")
    assert done.code == 124
    assert "3 of 3 ranks wait for others" in done.errors
    assert f"  rank 1 on {HOST} waits for the other ranks" in done.errors


def test_without_the_launcher_each_rank_tells_of_its_own_wait_and_the_job_ends(tmp_path):
    command = [*mpirun(3), sys.executable, str(SUMS), "sleeps", str(tmp_path)]
    done = run(command, 60, environment(EASYSCALE_STALL_TIMEOUT="2"))
    assert done.returncode == 124, done.stderr
    assert f"easyscale: [rank 2 of 3] on {HOST} has been waiting for 2 s: it waits for rank 1" in done.stderr


def test_a_time_out_below_zero_is_refused(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "easyscale", "launch", "--stall-timeout", "-1", str(SUMS)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and "Traceback" not in done.stderr


def test_a_launcher_that_is_killed_leaves_nothing(tmp_path):
    command = [sys.executable, "-m", "easyscale", "launch", "-n", "2", str(SUMS), "sleeps", str(tmp_path)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 120
        while not (tmp_path / "failed").exists() and time.monotonic() < end:
            time.sleep(0.05)
        assert list(harness.SHARED_MEMORY.glob(f"easyscale-{process.pid}-*"))
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    end = time.monotonic() + 120
    while (left := list(harness.SHARED_MEMORY.glob(f"easyscale-{process.pid}-*"))) and time.monotonic() < end:
        time.sleep(0.1)
    for folder in left:
        shutil.rmtree(folder)
    assert not left
