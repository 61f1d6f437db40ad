"""When gradients are applied, and who waits: worked out by hand."""

import random

import pytest

from easyscale.exchange import ParameterServer
from easyscale.serving import Staleness, rule_of
from easyscale.serving.rules import Asynchronous, BackupWorkers, Bounded


def _step(rule, worker):
    """A worker pushes and asks for weights; return whose gradients were applied."""
    applied = rule.push(worker, rule.steps[worker] + 1)
    rule.ask(worker)
    return applied


def test_options_choose_the_rule():
    rules = [
        rule_of(server, 4)
        for server in (ParameterServer("async"), ParameterServer("bounded"), ParameterServer(backup_workers=1))
    ]
    assert [type(rule) for rule in rules] == [Asynchronous, Bounded, BackupWorkers]


def test_asynchronous_applies_each_and_nobody_waits():
    rule = Asynchronous(3)
    for worker in (0, 0, 0, 1):
        assert _step(rule, worker) == [worker]
        assert rule.may_pull(worker)
        rule.pull(worker)
    assert rule.steps == [3, 1, 0]
    # Worker 1 had seen no step of worker 0, which made 3 since; worker 0 was alone.
    assert dict(rule.staleness.counts) == {0: 3, 3: 1}


def test_staleness_is_that_of_the_fastest_other_worker():
    rule = Asynchronous(3)
    for worker in (0, 1, 1):
        _step(rule, worker)
        rule.pull(worker)
    _step(rule, 2)
    assert dict(rule.staleness.counts) == {0: 2, 1: 1} | {2: 1} or rule.staleness.largest == 2
    assert rule.staleness.applied == rule.staleness.pushed == 4


def test_bounded_holds_who_is_too_far_ahead():
    rule = Bounded(2, bound=2)
    _step(rule, 0)
    assert rule.may_pull(0)  # its second step is the bound
    rule.pull(0)
    _step(rule, 0)
    assert not rule.may_pull(0)  # a third, while worker 1 has made none
    _step(rule, 1)
    assert rule.may_pull(0)
    assert rule.may_pull(1)


def test_bounded_does_not_wait_for_a_worker_without_data():
    rule = Bounded(2, bound=1)
    _step(rule, 0)
    assert not rule.may_pull(0)
    rule.end(1)
    assert rule.may_pull(0)


@pytest.mark.parametrize("bound", [1, 2, 5])
@pytest.mark.parametrize("seed", range(5))
def test_bounded_never_passes_its_bound_and_somebody_always_goes_on(bound, seed):
    generator, workers, rule = random.Random(seed), 4, Bounded(4, bound)
    computing, waiting = set(range(workers)), []
    for _ in range(400):
        assert computing or any(map(rule.may_pull, waiting)), "all wait"
        for worker in [worker for worker in waiting if rule.may_pull(worker)]:
            waiting.remove(worker)
            rule.pull(worker)
            computing.add(worker)
        (worker,) = generator.choices(sorted(computing), [1 if number else 0.05 for number in sorted(computing)])
        computing.discard(worker)
        _step(rule, worker)
        waiting.append(worker)
        assert max(rule.steps) - min(rule.steps) <= bound
    assert rule.staleness.largest == bound
    assert rule.staleness.applied == rule.staleness.pushed == 400


def test_backup_workers_take_the_first_and_drop_the_late():
    rule = BackupWorkers(3, backups=1)
    assert rule.push(0, 1) == []
    assert not rule.may_pull(0)
    assert rule.push(2, 1) == [0, 2]
    assert rule.may_pull(0)
    assert rule.may_pull(2)
    assert rule.together == 1
    assert rule.push(1, 1) == []  # its step has been made without it
    assert rule.may_pull(1)
    assert (rule.staleness.pushed, rule.staleness.applied, rule.staleness.dropped) == (3, 2, 1)


def test_backup_workers_go_on_when_one_has_no_more_data():
    rule = BackupWorkers(3, backups=1)
    assert rule.push(0, 1) == []
    assert rule.end(1) == [0]  # of two that are left, one is enough
    rule.begin_epoch()
    assert rule.together == 0
    assert rule.active == {0, 1, 2}


def test_counts_of_servers_add_up_and_travel():
    first, other = Staleness(), Staleness()
    for staleness, steps in ((first, 0), (first, 2), (other, 1)):
        staleness.pushed += 1
        staleness.apply(steps)
    whole = Staleness.together([first, Staleness.from_json(other.to_json())])
    assert (whole.pushed, whole.applied, whole.dropped, whole.mean, whole.largest) == (3, 3, 0, 1.0, 2)
