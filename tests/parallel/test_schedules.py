"""Schedules, without a tensor: stages that only count time, and whose sends end when the other side receives."""

import collections
import itertools
import re

import pytest

from easyscale.parallel.pipeline import schedules
from easyscale.parallel.pipeline.schedules import Kind

every_schedule = pytest.mark.parametrize("name", schedules.available())
every_shape = pytest.mark.parametrize(
    "stages, microbatches", list(itertools.product([1, 2, 3, 4, 8], [1, 2, 3, 4, 8, 16]))
)

RECEIVES = {Kind.RECEIVE_FORWARD, Kind.RECEIVE_BACKWARD}
SENDS = {Kind.SEND_FORWARD: (1, Kind.RECEIVE_FORWARD), Kind.SEND_BACKWARD: (-1, Kind.RECEIVE_BACKWARD)}


def actions(name, stages, microbatches):
    schedule = schedules.get(name)
    return [list(schedule.actions(stage, stages, microbatches)) for stage in range(stages)]


def run(plans, forward=1, backward=2):
    """Let stages run; return when each ends, and what it did from when to when. A send waits for its receive."""
    at, clocks, spans = [0] * len(plans), [0] * len(plans), [[] for _ in plans]

    def now(stage):
        return plans[stage][at[stage]] if at[stage] < len(plans[stage]) else None

    moved = True
    while moved:
        moved = False
        for stage in range(len(plans)):
            while (action := now(stage)) is not None:
                kind, microbatch = action
                if kind in (Kind.FORWARD, Kind.BACKWARD):
                    begun, clocks[stage] = (
                        clocks[stage],
                        clocks[stage] + (forward if kind is Kind.FORWARD else backward),
                    )
                    spans[stage].append((kind, microbatch, begun, clocks[stage]))
                elif kind in SENDS and now(stage + SENDS[kind][0]) == (SENDS[kind][1], microbatch):
                    other = stage + SENDS[kind][0]
                    clocks[stage] = clocks[other] = max(clocks[stage], clocks[other])
                    at[other] += 1
                else:
                    break  # it waits
                at[stage] += 1
                moved = True
    waiting = {stage: now(stage) for stage in range(len(plans)) if now(stage) is not None}
    assert not waiting, f"deadlock: {waiting}"
    return clocks, spans


@every_schedule
@every_shape
def test_no_deadlock_with_sends_that_wait_for_their_receiver(name, stages, microbatches):
    run(actions(name, stages, microbatches))


@every_schedule
@every_shape
def test_each_micro_batch_goes_once_each_way_through_each_stage_in_order(name, stages, microbatches):
    plans = actions(name, stages, microbatches)
    for stage, plan in enumerate(plans):
        counts = collections.Counter(kind for kind, _ in plan)
        assert len(set(plan)) == len(plan)
        assert counts[Kind.FORWARD] == counts[Kind.BACKWARD] == microbatches
        assert counts[Kind.RECEIVE_FORWARD] == counts[Kind.SEND_BACKWARD] == (microbatches if stage else 0)
        assert counts[Kind.SEND_FORWARD] == counts[Kind.RECEIVE_BACKWARD] == (microbatches if stage < stages - 1 else 0)
        position = {action: number for number, action in enumerate(plan)}
        for microbatch in range(microbatches):
            found = [position[kind, microbatch] for kind in Kind if (kind, microbatch) in position]
            assert found == sorted(found), "received, computed, sent; forward, then backward"
    # Messages have no numbers: two stages must send and receive them in one order.
    for before, behind in itertools.pairwise(plans):
        for sends, receives, send, receive in (
            (before, behind, Kind.SEND_FORWARD, Kind.RECEIVE_FORWARD),
            (behind, before, Kind.SEND_BACKWARD, Kind.RECEIVE_BACKWARD),
        ):
            assert [m for kind, m in sends if kind is send] == [m for kind, m in receives if kind is receive]


@every_schedule
@every_shape
def test_as_many_micro_batches_are_alive_as_it_says(name, stages, microbatches):
    for stage, plan in enumerate(actions(name, stages, microbatches)):
        alive, most = 0, 0
        for kind, _ in plan:
            alive += (kind is Kind.FORWARD) - (kind is Kind.BACKWARD)
            most = max(most, alive)
        assert most == schedules.get(name).alive(stage, stages, microbatches)


def test_1f1b_keeps_at_most_as_many_as_there_are_stages_behind_and_gpipe_all():
    one, gpipe = schedules.get("1f1b"), schedules.get("gpipe")
    assert [one.alive(stage, 4, 16) for stage in range(4)] == [4, 3, 2, 1]
    assert [gpipe.alive(stage, 4, 16) for stage in range(4)] == [16] * 4


@every_schedule
@every_shape
@pytest.mark.parametrize("forward, backward", [(1, 2), (1, 1), (3, 4)])
def test_a_stage_waits_for_the_share_of_the_formula(name, stages, microbatches, forward, backward):
    clocks, spans = run(actions(name, stages, microbatches), forward, backward)
    whole = max(clocks)
    share = (stages - 1) / (microbatches + stages - 1)
    for span in spans:
        computes = sum(stop - start for *_, start, stop in span)
        assert computes == microbatches * (forward + backward)
        assert 1 - computes / whole == pytest.approx(share, abs=1e-12)
    assert schedules.get(name).bubble(stages, microbatches) == pytest.approx(share)


@every_schedule
def test_the_drawing_is_what_happens(name):
    """Each column is the time of a forward pass: the rows of the docstring are those of a run of 3 stages."""
    _, spans = run(actions(name, 3, 4))
    rows = re.findall(r"^ +stage \d +((?:(?:\d'?|\.) +)+(?:\d'?|\.))", type(schedules.get(name)).__doc__, re.MULTILINE)
    assert len(rows) == 3
    for row, span in zip(rows, spans, strict=True):
        happened = {column: (kind, m) for kind, m, start, stop in span for column in range(start, stop)}
        expected = [
            f"{m}'" if kind is Kind.BACKWARD else f"{m}" if kind is Kind.FORWARD else "."
            for kind, m in (happened.get(column, (None, 0)) for column in range(18))
        ]
        assert row.split() == expected


def test_a_name_that_is_not_there_is_told_with_the_nearest():
    with pytest.raises(ValueError, match=r"`schedule` must be one of \['1f1b', 'gpipe'\].*Did you mean '1f1b'"):
        schedules.get("1f1")


def test_an_order_of_the_users_own_is_taken():
    class OneByOne(schedules.Schedule):
        """One micro-batch at a time."""

        name = "one_by_one"

        def order(self, stage, stages, microbatches):
            for number in range(microbatches):
                for kind in Kind:
                    yield schedules.Action(kind, number)

        def alive(self, stage, stages, microbatches):
            return 1

    mine = OneByOne()
    assert schedules.get(mine) is mine
    clocks, _ = run([list(mine.actions(stage, 3, 4)) for stage in range(3)])
    assert max(clocks) == 4 * 3 * 3
