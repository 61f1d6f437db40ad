"""Who takes part: ranks as threads, which send each other words by a post office, and fail when the test says so."""

import collections
import contextlib
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from easyscale import communicator
from easyscale.elastic.departures import Departures
from easyscale.elastic.elastic_membership import ElasticJob, ElasticMembership
from easyscale.elastic.membership import FixedMembership
from easyscale.errors import EasyScaleError
from easyscale.progress import Progress

LIMIT = 20  # seconds


class PostOffice:
    """What `Mail` does over MPI, between threads."""

    def __init__(self, world_ranks):
        self.words = [collections.deque() for _ in range(world_ranks)]
        self.failed, self.changed = frozenset(), threading.Lock()

    def fail(self, *world_ranks):
        self.failed |= {*world_ranks}


class Mailbox:
    """`Mail` of one world rank."""

    def __init__(self, office, own):
        self._office, self.own = office, own

    @property
    def failed(self):
        return self._office.failed

    def send(self, world_rank, tag, words=None):
        with self._office.changed:
            self._office.words[world_rank].append((self.own, tag, json.dumps(words)))

    def hear(self, tag, world_rank=None):
        with self._office.changed:
            own = self._office.words[self.own]
            found = next((word for word in own if word[1] == tag and world_rank in (None, word[0])), None)
            if found is None:
                return None
            own.remove(found)
            return found[0], json.loads(found[2])

    def silence(self):
        return contextlib.nullcontext()


class Ranks:
    """The memberships of all world ranks of an elastic job, and how often each was told that its ranks have changed."""

    def __init__(self, count, spares=0, servers=0):
        self.office, self.told, self.of, self.jobs = PostOffice(count + spares), collections.Counter(), [], []
        for world_rank in range(count + spares):
            mail = Mailbox(self.office, world_rank)
            job = ElasticJob(mail, Departures(mail), Progress(), count, spares, 1, True, lambda: None)
            self.jobs.append(job)
            self.of.append(
                ElasticMembership(job, servers, lambda world_rank=world_rank: self.told.update([world_rank]))
            )

    def on(self, world_ranks, act):
        """Call `act(membership)` on these world ranks at once; return the results."""
        with ThreadPoolExecutor(len(world_ranks)) as threads:
            return [
                future.result(LIMIT)
                for future in [threads.submit(act, self.of[world_rank]) for world_rank in world_ranks]
            ]


def _regroup(membership):
    return membership.regroup()


@pytest.mark.parametrize("lost", [0, 1, 3])
def test_those_who_are_left_keep_their_order_and_get_new_numbers(lost):
    ranks = Ranks(4)
    ranks.office.fail(lost)
    left = [world_rank for world_rank in range(4) if world_rank != lost]
    assert ranks.on(left, _regroup) == [([lost], [], False)] * 3
    for rank, world_rank in enumerate(left):
        membership = ranks.of[world_rank]
        assert (membership.rank, membership.size, membership.world_ranks) == (rank, 3, left)
        assert membership.initial_ranks == left
        assert membership.name == f"[rank {world_rank} of 4]", "both numbers are those of the start"
        assert membership.has_lost
        assert ranks.told[world_rank] == 1


def test_messages_of_other_ranks_have_another_tag():
    ranks = Ranks(3)
    before = ranks.of[0].tag
    ranks.office.fail(2)
    ranks.on([0, 1], _regroup)
    assert ranks.of[0].tag == ranks.of[1].tag != before
    assert FixedMembership(0, 3).tag not in (before, ranks.of[0].tag)


def test_a_server_that_fails_is_none_of_the_servers_any_more():
    ranks = Ranks(4, servers=2)
    ranks.office.fail(0, 3)
    ranks.on([1, 2], _regroup)
    assert [ranks.of[world_rank].servers for world_rank in (1, 2)] == [1, 1]


def test_whoever_waits_is_interrupted_by_a_failure_and_by_a_rank_that_cannot_go_on():
    ranks = Ranks(3)
    assert not any(membership.is_in_vain(notices=False) for membership in ranks.of)
    ranks.of[2].revoke()
    assert [membership.is_in_vain(notices=False) for membership in ranks.of] == [True] * 3
    changes = ranks.on([0, 1, 2], lambda membership: membership.regroup(again=membership.rank == 2))
    assert changes == [([], [], True)] * 3
    assert not any(membership.is_in_vain(notices=False) for membership in ranks.of)


def test_a_duplicate_follows_when_it_is_told_to():
    ranks = Ranks(3)
    follows = ElasticMembership(ranks.jobs[0], 0, lambda: None, is_duplicate=True)
    ranks.office.fail(1)
    ranks.on([0, 2], _regroup)
    assert follows.world_ranks == [0, 1, 2]
    assert follows.is_in_vain(notices=False)
    assert not follows.is_in_vain(notices=True), "what is waited for says itself whether it has failed"
    assert follows.regroup() == ([1], [], False)
    assert follows.world_ranks == [0, 2]


def test_a_spare_replaces_a_rank_when_all_have_admitted_it():
    ranks = Ranks(2, spares=1)
    ranks.office.fail(1)
    ranks.on([0], _regroup)
    chief, spare = ranks.of[0], ranks.of[2]
    assert chief.respawns and chief.replaces
    assert spare.is_joining
    assert chief.replace_lost({"fit": 1}) is None
    assert (spare.wait_for_call(), spare.note, spare.rank) == (1, {"fit": 1}, 1)
    with pytest.raises(EasyScaleError, match="a process that replaces rank 1 joins the others in `fit"):
        spare.check_rehearsal()
    with spare.rehearsing():
        spare.check_rehearsal()
    with ThreadPoolExecutor(1) as threads:
        joins = threads.submit(spare.join, 1)
        while not (newcomers := chief.ready(1)):
            pass
        assert newcomers == [(1, 2)]
        chief.admit(newcomers)
        assert joins.result(LIMIT)
    assert not spare.is_joining
    assert [(membership.rank, membership.world_ranks, membership.initial_ranks) for membership in (chief, spare)] == [
        (0, [0, 2], [0, 1]),
        (1, [0, 2], [0, 1]),
    ]


def test_ranks_as_threads_stay_as_they_are(run_ranks):
    def on_rank(comm):
        with pytest.raises(NotImplementedError, match="Start the job with `--elastic`"):
            comm.membership.regroup()
        return comm.membership.is_elastic, comm.membership.rank, comm.membership.initial_ranks, comm.membership.name

    assert run_ranks(2, on_rank)[1] == (False, 1, [0, 1], "[rank 1 of 2]")
    assert communicator.get("local").membership.begin_fit() + 1 == communicator.get("local").membership.begin_fit()
