"""The same over MPICH and Intel MPI as over Open MPI: sums, training, and how a job ends in which a rank fails."""

import os
import re
import time
from pathlib import Path

import pytest
from launches import environment, over_ranks, run
from mpis import BY_LAUNCH, BY_MPIEXEC, NAMES, launch, mpiexec

TESTS = Path(__file__).parents[1]
FAILING = str(TESTS / "communicator" / "failing.py")
SHARED_MEMORY = Path("/dev/shm")
FIT = Path(__file__).with_name("fit_on_ranks.py")
LIMIT = 90.0


@over_ranks(TESTS / "communicator" / "communicator_on_ranks.py", sizes=[3], starts=BY_MPIEXEC)
def test_communicator(check):
    check()


@over_ranks(TESTS / "exchange" / "exchange_on_ranks.py", sizes=[3], starts=BY_LAUNCH)
def test_exchanges(check):
    check()


@over_ranks(FIT, sizes=[2], starts=BY_LAUNCH[:1])
def test_fit(check):
    check()


@over_ranks(FIT, sizes=[], full=[2], starts=BY_MPIEXEC + BY_LAUNCH[1:])
def test_fit_started_the_other_way(check):
    check()


@pytest.fixture(params=NAMES)
def mpi(request):
    return request.param


def test_a_job_without_failure_is_quiet(mpi):
    for command in (launch(mpi, 3), mpiexec(mpi, 3)):
        done = run([*command, FAILING, "nothing"], LIMIT)
        assert (done.returncode, done.stderr) == (0, "")
        found = sorted(re.findall(r"rank \d came to its end", done.stdout))
        assert found == [f"rank {rank} came to its end" for rank in range(3)]


@pytest.mark.parametrize(
    ("way", "code", "how"),
    [
        ("one_rank_leaves_with_a_code", 3, "ended with exit code 3 while other ranks still needed it"),
        ("one_rank_is_killed_in_shared_memory", 137, "was killed by signal 9 (Killed)"),
        ("exception_on_one_rank", 1, "ended with exit code 1"),
    ],
)
def test_launch_names_the_rank_that_failed_and_ends_with_its_code(mpi, way, code, how):
    done = run([*launch(mpi, 3), FAILING, way], LIMIT)
    assert done.returncode == code, done.stderr
    assert done.stderr.splitlines()[-1] == f"easyscale: rank 1 on {os.uname().nodename} {how}"
    assert done.stdout == ""


def test_its_own_mpiexec_ends_with_a_code_and_the_others_name_the_rank_that_left(mpi):
    done = run([*mpiexec(mpi, 3), FAILING, "one_rank_leaves_with_a_code"], LIMIT)
    assert done.returncode != 0  # which number is theirs to say: also 9 or 255
    assert "every rank must take part to the end. Rank 1 has ended while this rank waits for" in done.stderr
    assert "Traceback" not in done.stderr and "came to its end" not in done.stdout


def test_a_rank_that_is_killed_ends_its_own_mpiexec_and_leaves_no_shared_memory(mpi):
    before = _shared_memory()
    done = run([*mpiexec(mpi, 3), FAILING, "one_rank_is_killed_in_shared_memory"], LIMIT)
    assert done.returncode != 0 and "came to its end" not in done.stdout
    assert _left(before) == set()


def _shared_memory() -> set[Path]:
    return set(SHARED_MEMORY.glob("mpich_*"))


def _left(before: set[Path]) -> set[Path]:
    """What has come since `before` and stays; that of a job that runs meanwhile goes soon."""
    new, end = _shared_memory() - before, time.monotonic() + 20
    while any(file.exists() for file in new) and time.monotonic() < end:
        time.sleep(0.1)
    return {file for file in new if file.exists()}


def test_an_error_of_the_mpi_library_is_one_line(mpi):
    done = run([*mpiexec(mpi, 2), FAILING, "longer_message_than_expected"], LIMIT)
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert (
        "PeerError: [rank 1 of 2] MPI failed while this rank waits for rank 0: Message truncated. "
        "Pass vectors of one length and dtype on all ranks"
    ) in lines
    assert all(line.startswith("PeerError: ") for line in lines)


def test_an_elastic_job_is_refused_in_one_line(mpi):
    done = run([*launch(mpi, 2), "--elastic", FAILING, "nothing"], LIMIT)
    kind = {"mpich": r"MPICH \S+", "impi-rt": r"Intel\(R\) MPI Library [^\n]+"}[mpi]
    received = rf"Received: \S+, {kind}\. Run: pip install 'easyscale\[mpi\]'\n"
    assert done.returncode == 1
    assert re.fullmatch(rf"easyscale: --elastic needs Open MPI 5 or later\. {received}", done.stderr)

    before = _shared_memory()
    done = run([*mpiexec(mpi, 2), FAILING, "nothing"], LIMIT, environment(EASYSCALE_ELASTIC="1"))
    assert done.returncode != 0
    rule = "LaunchError: an elastic job needs Open MPI 5 or later. Received: EASYSCALE_ELASTIC=1 and "
    assert all(line.startswith(rule) for line in done.stderr.splitlines()) and done.stderr
    assert _left(before) == set()
