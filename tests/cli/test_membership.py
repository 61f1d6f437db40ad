"""Whether an elastic job goes on without a rank, as the launcher sees it."""

import pytest

from easyscale.cli.launch.ending import Ending
from easyscale.cli.launch.membership import Membership, Process
from easyscale.progress import Leave


def killed(rank, **fields):
    return Ending(rank, "a", **{"signal": 9, "leave": Leave.NONE, **fields})


def lose(membership, ending, number=0):
    process = Process(ending.rank, number)
    membership.end(process)
    return membership.lose(process, ending)


def begun(workers, least=1, **options):
    made = Membership(workers, least, **options)
    for rank in range(workers):
        made.begin(rank)
    return made


def test_workers_go_on_as_long_as_there_are_enough():
    membership = begun(3, least=2)
    assert lose(membership, killed(2)) == (
        True,
        "rank 2 on a was killed by signal 9 (Killed); 2 of 3 workers are left",
    )
    assert lose(membership, killed(0)) == (False, "1 worker is left, fewer than --min-workers 2")


def test_outside_of_training_it_is_said_when_the_job_ends():
    assert lose(begun(3), killed(2, in_fit=False)) == (
        True,
        "rank 2 on a was killed by signal 9 (Killed); 2 of 3 workers are left. Outside of fit() the job ends when one "
        "of them needs it",
    )


def test_servers_are_no_workers():
    membership = Membership(1, least=1)
    for rank in range(2):
        membership.begin(rank)
    assert lose(membership, killed(0)) == (False, "0 workers are left, fewer than --min-workers 1")


@pytest.mark.parametrize(
    ("membership", "ending"),
    [
        (begun(3, least=None), killed(2)),
        (begun(3), killed(2, signal=None, code=3)),
        (begun(3), killed(2, leave=Leave.TOO_EARLY)),
        (begun(3, needed=[2]), killed(2)),
    ],
    ids=["not elastic", "exit code", "left too early", "needed"],
)
def test_some_endings_end_the_job_like_any_failure(membership, ending):
    assert lose(membership, ending) == (False, "")


def test_none_is_missed_before_all_have_begun():
    goes_on, why = lose(begun(2), killed(1, met=False))
    assert (goes_on, why) == (False, "workers go on without another when all have begun with MPI, not before")


def test_who_replaces_a_worker_counts_when_it_has_joined():
    membership = begun(2)
    lose(membership, killed(1))
    membership.begin(1)
    goes_on, why = lose(membership, killed(1), number=1)
    assert (goes_on, why) == (True, "rank 1 on a was killed by signal 9 (Killed) before it had joined the others")
    membership.join(membership.begin(1))
    goes_on, why = lose(membership, killed(0))
    assert (goes_on, why) == (True, "rank 0 on a was killed by signal 9 (Killed); 1 of 2 workers is left")


def test_the_last_worker_may_die_while_one_joins():
    # The one that joins may be among the others already, and not have told of it.
    membership = begun(2)
    lose(membership, killed(1))
    membership.begin(1)
    goes_on, why = lose(membership, killed(0))
    assert (goes_on, why) == (True, "rank 0 on a was killed by signal 9 (Killed), while another one joins")


def test_of_two_that_replace_one_worker_the_one_that_has_joined_counts():
    membership = begun(2, has_spares=True)
    lose(membership, killed(1))
    first, second = membership.begin(1), membership.begin(1)
    membership.join(first)
    unneeded = killed(1, signal=None, code=0, leave=Leave.UNNEEDED)
    assert lose(membership, unneeded, second.number) == (True, "")
    assert lose(membership, killed(0))[1].endswith("; 1 of 2 workers is left")
    assert not membership.is_over
    membership.end(first)
    assert membership.is_over


def test_one_that_was_not_told_that_it_had_joined_is_left_out_again():
    membership = begun(3, least=2)
    lose(membership, killed(2))
    membership.join(membership.begin(2))
    unneeded = killed(2, signal=None, code=0, leave=Leave.UNNEEDED)
    assert lose(membership, unneeded, number=1) == (True, "")
    assert lose(membership, killed(0)) == (False, "1 worker is left, fewer than --min-workers 2")


def test_a_job_with_spares_is_over_when_all_ranks_have_ended():
    membership = begun(2, has_spares=True)
    for rank in range(2):
        assert not membership.is_over
        membership.end(Process(rank))
    assert membership.is_over
    membership.begin(1)
    assert not membership.is_over
