"""Parts of a step make up the step, whatever thread begins them."""

import pytest

from easyscale import timeline as timelines
from easyscale.timeline import Part, Span, Timeline


@pytest.fixture
def timeline(monkeypatch):
    """A timeline whose clock shows 0, 1, 2, ..."""
    times = iter(range(1000))
    monkeypatch.setattr(Timeline, "clock", staticmethod(lambda: next(times)))
    return Timeline(is_on=True, traced=range(1, 2))


def step(timeline, *parts):
    timeline.begin_step()
    for part in parts:
        timeline.to(part)


def test_parts_sum_up_to_steps(timeline):
    step(timeline, Part.DATA, Part.PASSES, Part.WAIT, Part.EXCHANGE, Part.OTHER)
    step(timeline, Part.DATA, Part.WAIT, Part.PACK, Part.WAIT)
    timeline.end_step()
    assert (timeline.steps, timeline.waits) == (2, {0: 1, 1: 2})
    assert timeline.times == {"other": 3, "data": 2, "forward-backward": 1, "wait": 3, "exchange": 1, "pack": 1}
    assert sum(timeline.times.values()) == 11  # of the clock, from the first step's begin to the last one's end


def test_spans_are_of_the_traced_steps(timeline):
    for _ in range(3):
        step(timeline, Part.PACK)
    timeline.end_step()
    assert timeline.spans == [Span("other", 2, 3, "", 1), Span("pack", 3, 4, "", 1)]


@pytest.mark.parametrize(
    ("ago", "parts"),
    [
        (0.5, ["other", "data", "gather", "data", "forward-backward"]),  # in the second wait for data
        (1.5, ["other", "data", "gather", "forward-backward"]),  # while something else is waited for
        (2.5, ["other", "data", "forward-backward", "gather", "forward-backward"]),  # in the first one
        (100, ["forward-backward", "forward-backward", "gather", "forward-backward"]),  # clocks do not agree
    ],
)
def test_passes_begin_when_the_batch_came_as_a_graph_says_later(monkeypatch, ago, parts):
    times = iter([0, 10, 20, 30, 40, 50])
    monkeypatch.setattr(Timeline, "clock", staticmethod(lambda: next(times)))
    monkeypatch.setattr(timelines.time, "time_ns", lambda: 1_000_000_000)
    timeline = Timeline(is_on=True, traced=range(1))
    step(timeline, Part.DATA, Part.GATHER, Part.DATA)  # from 10, 20, 30 on
    timeline.came(1 - 10e-9 * ago)  # so long before 40
    timeline.end_step()
    spans = [span for span in timeline.spans if span.end > span.begin]
    assert [span.name for span in spans] == parts
    assert sum(timeline.times.values()) == 50


def test_a_batch_that_is_not_known_to_have_come_changes_nothing(timeline):
    timeline.came(5.0)
    step(timeline, Part.DATA)
    timeline.came()
    timeline.to(Part.WAIT)
    timeline.end_step()
    assert timeline.times == {"other": 1, "data": 1, "wait": 1}


def test_to_returns_what_was_and_goes_back(timeline):
    timeline.begin_step()
    assert timeline.to(Part.PASSES) == "other"
    before = timeline.to(Part.WAIT)
    assert (before, timeline.to(before)) == ("forward-backward", "wait")


def test_what_is_outside_of_steps_is_not_recorded(timeline):
    assert timeline.to(Part.EXCHANGE) == ""
    step(timeline, Part.PACK)
    timeline.end_step()
    before = timeline.to(Part.EXCHANGE)
    timeline.to(before)
    timeline.end_step()
    assert timeline.times == {"other": 1, "pack": 1}


def test_steps_that_are_traced_by_the_backend_or_have_no_data_do_not_count(timeline):
    step(timeline, Part.UPDATE)
    timeline.leave_out()
    step(timeline, Part.UPDATE)
    timeline.begin_step()
    timeline.drop_step()
    timeline.end_step()
    step(timeline, Part.DATA)
    timeline.end_step()
    assert (timeline.steps, timeline.times) == (1, {"other": 1, "update": 1})
    assert {span.step for span in timeline.spans} == {1}


def test_a_fit_counts_from_its_begin(timeline):
    step(timeline, Part.PACK)
    timeline.end_step()
    timeline.begin()
    assert (timeline.steps, timeline.times) == (0, {})


def test_steps_have_the_same_numbers_on_all_ranks_behind_an_epoch_that_is_shorter_here(timeline):
    for _ in range(2):
        step(timeline, Part.PACK)
        timeline.end_step()
        timeline.settle(timeline.number + 1)  # others have made one more
    assert (timeline.number, list(timeline.waits)) == (3, [0, 2])


def test_another_thread_has_a_row_of_its_own(timeline):
    def exchange(number):
        return 2 * number

    step(timeline)
    assert timeline.beside(Part.EXCHANGE, exchange, "beside") is exchange  # this step is none of the traced ones
    step(timeline)
    assert timeline.beside(Part.EXCHANGE, exchange, "beside")(4) == 8
    timeline.end_step()
    assert timeline.spans == [Span("exchange", 2, 3, "beside", 1), Span("other", 1, 4, "", 1)]
    assert "exchange" not in timeline.times


def test_while_it_is_off_nothing_is_recorded_and_no_function_is_another():
    timeline = Timeline(traced=range(10))
    step(timeline, Part.DATA)
    timeline.leave_out()
    timeline.drop_step()
    timeline.end_step()
    assert (timeline.steps, timeline.times, timeline.spans) == (0, {}, [])
    assert timeline.beside(Part.EXCHANGE, print, "beside") is print
