"""A training that goes wrong on one rank ends on all, soon, and says why once."""

import sys
import time
from pathlib import Path

import pytest
from launches import run

FAILING = Path(__file__).with_name("failing.py")
# Rank 1 is the one that goes wrong. Where rank 0 alone waits for it, a third process starts for nothing.
SIZES = [2, pytest.param(3, marks=pytest.mark.full)]


def _fail(case, size, servers=0):
    started = time.monotonic()
    launch = [sys.executable, "-m", "easyscale", "launch", "-n", str(size), "--servers", str(servers)]
    done = run([*launch, str(FAILING), case], timeout=90)
    assert done.returncode not in (0, None), done.stderr
    return done, time.monotonic() - started


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("case", "message"),
    [
        pytest.param("exception_in_a_callback", "KeyError: 'in a callback'", marks=pytest.mark.full),
        ("exception_inside_an_exchange", "ZeroDivisionError: inside an exchange"),
        ("exception_while_tracing", "Exception encountered when calling RaisingLayer.call()"),
        pytest.param(
            "different_gradients_and_fit_recovers_the_error",
            "ZeroDivisionError: inside an exchange",
            marks=pytest.mark.full,
        ),
    ],
)
def test_an_exception_on_one_rank_ends_all_and_is_shown_once(case, message, size):
    done, _ = _fail(case, size)
    assert done.stderr.count(message) == 1, done.stderr
    assert done.stderr.count("Traceback (most recent call last)") == 1, done.stderr
    assert "MPI_ABORT" not in done.stderr


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("case", "message"),
    [
        (
            "different_exchanges",
            "DesyncError: all ranks must use the same exchange, replication, update, compression, bucket_bytes and "
            "Keras backend. Received: ['ring', 'between_graph', 'auto', None, None, 'tensorflow'] on rank 0, ['tree', "
            "'between_graph', 'auto', None, None, 'tensorflow'] on rank 1. Start all ranks with one command",
        ),
        (
            "different_models",
            "DesyncError: all ranks must build the same model and optimizer. Received: variables number 0: (3, 2) "
            "float32 on rank 0, (3, 3) float32 on rank 1. Run one script on all ranks",
        ),
        (
            "different_epochs",
            "DesyncError: all ranks must train for the same epochs. Received: epochs=2 on rank 0, epochs=3 on rank 1. "
            "Run one script on all ranks",
        ),
        (
            "different_gradients",
            "DesyncError: all ranks must exchange the same gradients. Received: gradients 2 on rank 0, 1 on "
            "rank 1. Run one script on all ranks",
        ),
    ],
)
def test_ranks_that_differ_end_with_one_line(case, message, size):
    done, _ = _fail(case, size)
    lines = [line for line in done.stderr.splitlines() if "Error" in line]
    assert lines == [message], done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.full
@pytest.mark.parametrize("case", ["a_fit_behind_one_that_failed", "a_fit_of_another_model_behind_one_that_failed"])
def test_a_fit_on_one_rank_behind_one_that_failed_there_is_named(case):
    done, _ = _fail(case, size=2)
    (line,) = [line for line in done.stderr.splitlines() if "Error" in line]
    assert line.startswith(
        "DesyncError: all ranks must take part in the same epochs, validations and steps. Received: rank 0 "
    )
    assert ", rank 1 begins to train outside of fit()." in line, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("case", "who"),
    [
        ("a_worker_is_killed", "rank 1 on "),
        pytest.param("a_server_is_killed", "rank 2, a server, on ", marks=pytest.mark.full),
        ("a_server_is_killed_while_nobody_waits", "rank 2, a server, on "),
    ],
)
def test_a_rank_that_is_killed_is_named(case, who):
    done, _ = _fail(case, size=2, servers=1)
    killed_at = [float(line.split()[-1]) for line in done.stdout.splitlines() if "killed at" in line]
    assert len(killed_at) == 1, done.stdout + done.stderr
    assert time.time() - killed_at[0] < 15
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"easyscale: {who}"), done.stderr
    assert last.endswith("was killed by signal 9 (Killed)"), done.stderr


@pytest.mark.full
@pytest.mark.parametrize(
    ("rank", "least", "message"),
    [
        ("1", "2", "1 worker is left, fewer than --min-workers 2"),
        ("2", "1", "rank 2, a server, on "),
    ],
)
def test_an_elastic_job_ends_below_the_least_workers_and_without_a_server(rank, least, message):
    case = "a_worker_is_killed" if rank == "1" else "a_server_is_killed_while_nobody_waits"
    launch = [sys.executable, "-m", "easyscale", "launch", "-n", "2", "--servers", "1", "--elastic"]
    done = run([*launch, "--min-workers", least, str(FAILING), case], timeout=90)
    assert done.returncode == 128 + 9, done.stderr
    assert message in done.stderr
    (killed_at,) = [float(line.split()[-1]) for line in done.stdout.splitlines() if "killed at" in line]
    assert time.time() - killed_at < 15


@pytest.mark.full
def test_an_exception_of_a_worker_that_nobody_waits_for_ends_all():
    done, _ = _fail("exception_where_nobody_waits", size=2, servers=1)
    assert done.stderr.count("KeyError: 'in a callback'") == 1, done.stderr


@pytest.mark.full
def test_validation_on_one_rank_alone_is_named():
    done, _ = _fail("validation_on_the_chief_alone", size=3)
    assert "DesyncError: all ranks must take part in the same epochs, validations and steps." in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.full
def test_a_model_that_cannot_start_equal_is_refused():
    done, _ = _fail("a_model_that_is_not_built_without_the_callback", size=2)
    assert (
        "ValueError: a model must be built before its first step, so that all workers can start equal." in done.stderr
    )


@pytest.mark.full
def test_a_rank_without_any_data_ends_the_job_with_a_reason():
    done, _ = _fail("data_that_one_rank_has_none_of", size=3)
    assert "Error" in done.stderr


@pytest.mark.full
def test_a_rank_without_data_takes_part_where_the_first_step_builds_model_and_optimizer():
    launch = [sys.executable, "-m", "easyscale", "launch", "-n", "3", str(FAILING)]
    done = run([*launch, "no_data_and_an_optimizer_that_the_first_step_builds"], timeout=90)
    assert done.returncode == 0, done.stderr
