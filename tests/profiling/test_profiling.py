"""What all ranks have recorded, as a table, a line of advice, and a file of a trace."""

import json

import pytest

from easyscale import profiling
from easyscale.profiling.advice import waits_for
from easyscale.profiling.gathered import Recorded
from easyscale.profiling.trace_file import events
from easyscale.timeline import Span, Timeline


def recorded(rank, waits, spans=(), **parts):
    """Of a rank that has waited so long in steps 0, 1, ..."""
    parts = {name.replace("_", "-"): value for name, value in parts.items()}
    return Recorded(rank, f"host{rank}", parts, dict(enumerate(waits)), list(spans))


# Rank 2's data take 31 ms, so the others wait 29 ms for it; once rank 0 comes last.
SLOW_DATA = [
    recorded(0, [0.03, 0.03, 0.001], data=0.002, forward_backward=0.04, wait=0.061 / 3),
    recorded(1, [0.03, 0.03, 0.021], data=0.002, forward_backward=0.04, wait=0.027),
    recorded(2, [0.001, 0.001, 0.021], data=0.031, forward_backward=0.04, wait=0.023 / 3),
]


def test_a_table_has_a_row_for_each_rank_whose_parts_make_the_step():
    lines = profiling.table(SLOW_DATA)
    assert lines[:2] == [
        "where the time of 3 steps went, in ms of a step:",
        "rank   data  forward-backward   wait   step",
    ]
    assert lines[2] == "   0   2.00             40.00  20.33  62.33"
    for line in lines[2:]:
        _, *parts, step = map(float, line.split())
        assert sum(parts) == pytest.approx(step, abs=0.01 * len(parts))


def test_ranks_wait_for_the_one_that_waits_least():
    # Rank 2 comes last twice, by 29 ms for each of two others; rank 0 once, by 20 ms.
    assert waits_for(SLOW_DATA) == pytest.approx([0.02 / 3, 0.0, 0.058 / 3])
    missing = SLOW_DATA[1]._replace(waits={1: 0.03, 2: 0.021, 7: 1.0})  # of rank 1 steps 1 and 2 are those of others
    assert waits_for([SLOW_DATA[0], missing, SLOW_DATA[2]]) == pytest.approx([0.02 / 2, 0.0, 0.029 / 2])
    assert waits_for([recorded(0, [], data=1.0), recorded(1, [0.1], data=1.0)]) == [0.0, 0.0]


def test_the_laggard_is_named_with_what_takes_longer_there_and_what_would_help():
    # 58 / 3 ms are waited for it, in a step of 78 ms where it is waited for longest.
    whom = "25% of a step waits for rank 2 on host2, whose data takes 31 ms, 29 ms more than that of others"
    cure = "prefetch, as by `dataset.prefetch(tf.data.AUTOTUNE)`, or more `workers` of a `PyDataset`"
    assert profiling.advise(SLOW_DATA) == f"{whom}: {cure}"


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"data": 0.02, "forward_backward": 0.08}, "20% of a step is data: prefetch, as by"),
        ({"exchange": 0.05, "pack": 0.01, "forward_backward": 0.04}, "60% of a step is the exchange: larger batches"),
        ({"callbacks": 0.05, "forward_backward": 0.05}, "50% of a step is callbacks: let callbacks do less"),
        ({"checkpoint": 0.02, "forward_backward": 0.08}, "20% of a step is checkpoint: write checkpoints less often"),
        ({"forward_backward": 0.09, "update": 0.008, "gather": 0.002}, "98% of a step computes, 2% is spent on the"),
        ({}, "no step was recorded behind the first one, which is traced"),
    ],
)
def test_where_no_rank_waits_the_largest_part_that_can_be_saved_is_named(parts, said):
    assert profiling.advise([recorded(rank, [0.0], **parts) for rank in range(2)]).startswith(said)


def test_ranks_that_wait_for_now_one_and_now_another_have_no_laggard():
    ranks = [recorded(0, [0.1, 0.0], forward_backward=0.1, wait=0.05)]
    ranks.append(recorded(1, [0.0, 0.1], forward_backward=0.1, wait=0.05))
    assert profiling.advise(ranks).startswith("67% of a step waits for other ranks, now for one and now for another")


def test_a_laggard_that_does_nothing_longer_is_late_from_elsewhere():
    ranks = [recorded(0, [0.1], forward_backward=0.1, wait=0.1), recorded(1, [0.0], forward_backward=0.1, other=0.1)]
    assert "rank 1 on host1, whose other takes 100 ms" in profiling.advise(ranks)
    ranks = [recorded(0, [0.1], forward_backward=0.1, wait=0.1), recorded(1, [0.0], forward_backward=0.101)]
    assert "rank 1 on host1, which comes late to its steps" in profiling.advise(ranks)


def test_the_chief_gets_what_all_have_recorded_by_its_own_clock(run_ranks):
    def on_rank(comm):
        comm.timeline = Timeline(is_on=True)
        comm.timeline.times.update(data=3_000_000_000, wait=1_000_000_000 * comm.rank)
        comm.timeline.waits.update({4: 0, 6: 1_000_000_000 * comm.rank})
        comm.timeline.spans += [Span("data", 5_000_000_000, 6_000_000_000, "", 7), Span("wait", 3, 3, "", 7)]
        return profiling.gather(comm, [0.0, 2.0, -1.0], sends_spans=comm.rank < 3)

    chief, *others = run_ranks(3, on_rank)
    assert others == [[], []]
    assert [rank.parts for rank in chief] == [{"data": 1.5, "wait": 0.5 * rank} for rank in range(3)]
    assert [rank.waits for rank in chief] == [{4: 0.0, 6: 1.0 * rank} for rank in range(3)]
    assert [rank.spans for rank in chief] == [
        [Span("data", 5_000_000_000 - ahead, 6_000_000_000 - ahead, "", 7)]
        for ahead in (0, 2_000_000_000, -1_000_000_000)
    ]


def test_a_trace_has_a_process_for_each_rank_and_says_for_whom_it_waits(tmp_path):
    ranks = [
        recorded(0, [], [Span("data", 5_000, 6_000, "", 0), Span("wait", 6_000, 9_500, "", 0)]),
        recorded(1, [], [Span("wait", 9_000, 9_200, "", 0), Span("exchange", 9_100, 9_900, "beside", 0)]),
    ]
    profiling.write(str(tmp_path / "trace.json"), ranks)
    written = json.loads((tmp_path / "trace.json").read_text())
    assert written["traceEvents"] == list(events(ranks)) and written["displayTimeUnit"] == "ms"
    names = {
        (event["name"], event["pid"], event["tid"]): event["args"] for event in events(ranks) if event["ph"] == "M"
    }
    assert names["process_name", 1, 0] == {"name": "rank 1 on host1"}
    assert names["thread_name", 1, 1] == {"name": "beside"}
    spans = [event for event in events(ranks) if event["ph"] == "X"]
    assert spans[1] == {
        "ph": "X", "name": "wait", "pid": 0, "tid": 0, "ts": 1.0, "dur": 3.5, "args": {"step": 0, "for": "rank 1"}
    }  # fmt: skip
    assert spans[2]["args"] == {"step": 0}
    assert [span["ts"] for span in spans] == [0.0, 1.0, 4.0, 4.1]
