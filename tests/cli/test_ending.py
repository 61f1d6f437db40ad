"""Which rank is named when a job has failed. A status of `os.waitpid` is an exit code times 256, or a signal."""

import signal

import pytest

from easyscale.cli.launch.ending import Ending, Endings
from easyscale.progress import Leave


def ended(rank, status, when=0, leave=Leave.DONE, missed=0):
    words = {"host": "a", "status": status, "met": True, "leave": leave, "missed": missed}
    return Ending.reported(rank, words, when)


def endings(*found, is_elastic=False):
    made = Endings(is_elastic)
    for ending in found:
        made.add(ending)
    return made


@pytest.mark.parametrize(
    ("statuses", "said", "expected"),
    [
        ([(2, 3 * 256), (0, 256)], None, (2, None, 3)),
        ([(0, 15), (1, 3 * 256)], None, (1, None, 3)),  # rank 0 was killed because of rank 1
        ([(0, 15)], Ending(rank=1, code=7), (1, None, 7)),  # MPI_Abort, which mpirun tells of
        ([(1, 9), (0, 15)], Ending(rank=0, signal=15), (1, 9, None)),
        ([(1, 9)], Ending(signal=9), (1, 9, None)),
        ([(1, 11)], None, (1, 11, None)),
    ],
)
def test_the_first_that_failed_by_itself_is_named(statuses, said, expected):
    found = endings(*(ended(*status, when=when) for when, status in enumerate(statuses)))
    cause = found.cause(said)
    assert (cause.rank, cause.signal, cause.code) == expected
    assert not found.is_success


def test_a_rank_that_was_killed_first_made_mpi_end_those_that_say_nothing():
    killed, ended_by_mpi = ended(1, 9, when=1, leave=Leave.NONE), ended(2, 14 * 256, when=2, leave=Leave.NONE)
    assert endings(ended_by_mpi, killed).cause(None) == killed
    exited, killed_by_mpirun = ended(2, 3 * 256, when=1, leave=Leave.NONE), ended(1, 9, when=2, leave=Leave.NONE)
    assert endings(killed_by_mpirun, exited).cause(None) == exited


def test_reports_count_in_the_order_in_which_ranks_ended_not_in_that_in_which_they_came():
    assert endings(ended(0, 3 * 256, when=5), ended(2, 4 * 256, when=3)).cause(None).rank == 2


def test_nobody_is_named_if_nothing_has_failed():
    assert endings().cause(None) is None
    assert endings(ended(0, 0), ended(1, 0)).is_success


def test_a_rank_that_left_too_early_made_those_fail_that_say_so():
    left = ended(1, 0, leave=Leave.TOO_EARLY)
    assert endings(ended(0, 256), left).cause(None) == left
    assert left.describe(on_this_host=False) == "rank 1 on a ended with exit code 0 while other ranks still needed it"
    assert left.exit_code == 1


def test_ranks_that_gave_up_did_so_because_of_one_that_says_nothing():
    vanished = ended(1, 0, when=1, leave=Leave.NONE)  # as by `os._exit(0)`
    found = endings(ended(0, 256, when=2, leave=Leave.GAVE_UP), vanished)
    assert found.cause(None) == vanished
    assert not found.is_success


def test_an_elastic_job_is_a_success_if_one_rank_came_to_its_end():
    found = Endings(is_elastic=True)
    found.survive(ended(1, 9))
    assert not found.is_success
    found.add(ended(2, 0), is_member=False)
    assert not found.is_success
    found.add(ended(0, 0))
    assert found.is_success


def test_an_elastic_job_that_has_lost_a_rank_after_its_training_is_none():
    found = Endings(is_elastic=True)
    found.survive(ended(0, 9))
    found.add(ended(1, 0, leave=Leave.MISSED))
    assert not found.is_success
    assert found.cause(None).rank == 0


def test_of_an_elastic_job_that_nobody_survives_the_last_is_named():
    found = Endings(is_elastic=True)
    for when, rank in enumerate([1, 0, 2]):
        found.survive(ended(rank, 9, when=when))
    assert found.cause(None).rank == 2


def test_an_exception_that_others_survive_is_told_as_one_and_not_as_the_signal_that_tells_mpi():
    raised = ended(1, signal.SIGKILL, leave=Leave.RAISED)
    assert raised.is_sudden
    assert raised.describe(on_this_host=False) == "rank 1 on a ended by an exception"
    assert raised.exit_code == 1


def test_one_that_mpirun_ends_on_its_way_out_is_why_others_gave_up():
    early = ended(1, signal.SIGTERM, when=2, leave=Leave.TOO_EARLY)
    found = endings(ended(0, 256, when=1, leave=Leave.GAVE_UP), early)
    assert found.cause(None) == early
    assert early.describe(on_this_host=False) == "rank 1 on a ended while other ranks still needed it"
    assert early.exit_code == 1


def test_of_an_elastic_job_one_that_gave_up_is_not_why_it_ended():
    found = Endings(is_elastic=True)
    found.add(ended(0, 256, when=1, leave=Leave.GAVE_UP))
    found.add(ended(1, 768, when=2, leave=Leave.TOO_EARLY))
    assert (found.cause(None).rank, found.cause(None).exit_code) == (1, 3)


@pytest.mark.parametrize("is_elastic", [False, True])
@pytest.mark.parametrize(
    ("left", "how", "code"),
    [
        (None, "ended", 1),  # nothing has come of it
        (ended(1, 0, when=1), "ended with exit code 0", 1),
        (ended(1, 3 * 256, when=1, leave=Leave.TOO_EARLY), "ended with exit code 3", 3),
        (ended(1, signal.SIGTERM, when=9), "ended", 1),
        (ended(1, signal.SIGKILL, when=9), "ended", 1),
        (ended(1, signal.SIGKILL, when=9, leave=Leave.TOO_EARLY), "ended", 1),
    ],
)
def test_who_has_left_is_named_by_those_that_missed_it(left, how, code, is_elastic):
    # Nobody waits for its own word: it may not have heard that others needed it, and mpirun may have killed it.
    gave_up = [ended(rank, 256, when=4 + rank, leave=Leave.GAVE_UP, missed=1 + 1) for rank in (0, 2)]
    found = endings(*gave_up, *([left] if left else []), is_elastic=is_elastic)
    cause = found.cause(Ending(rank=0, code=1))
    assert cause.describe(on_this_host=False) == f"rank 1 on a {how} while other ranks still needed it"
    assert cause.exit_code == code
    assert not found.is_success


def test_a_rank_that_was_killed_is_named_as_killed_although_another_missed_it():
    found = endings(ended(0, 256, when=2, leave=Leave.GAVE_UP, missed=1 + 1), ended(1, 11, when=1, leave=Leave.NONE))
    assert (found.cause(None).rank, found.cause(None).exit_code) == (1, 139)


def test_a_spare_has_no_rank():
    killed = Ending(5, "a", 9, leave=Leave.NONE, met=False, is_spare=True)
    expected = "a spare (--spares) on a was killed by signal 9 (Killed) before all had begun with MPI"
    assert killed.describe(on_this_host=False, workers=2) == expected
    assert killed.exit_code == 137
