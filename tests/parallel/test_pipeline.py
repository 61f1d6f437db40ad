"""What a user says of a pipeline, and what ranks tell each other before a step."""

import pytest

from easyscale import called, mesh
from easyscale.callbacks import Distribute
from easyscale.errors import DesyncError
from easyscale.parallel import Pipeline
from easyscale.training.pipelined.meeting import Kind, meet


@pytest.mark.parametrize(
    "options, message",
    [
        ({"stages": 1}, r"`stages` must be an integer of 2 or more\. Received: stages=1"),
        ({"stages": True}, r"`stages` must be an integer of 2 or more\. Received: stages=True"),
        ({}, r"`stages` must be an integer of 2 or more\. Received: stages=None"),
        (
            {"stages": 2, "microbatches": 0},
            "`microbatches` must be an integer of 1 or more. Received: microbatches=0",
        ),
        ({"stages": 2, "microbatches": 2.5}, "`microbatches` must be an integer"),
        ({"stages": 2, "schedule": "gpip"}, "`schedule` must be one of .* Did you mean 'gpipe'"),
        (
            {"cut": "block_4"},
            r"`cut` must be 'time', 'weights', or a list of names of layers\. Received: cut='block_4'",
        ),
        ({"cut": []}, "`cut` must be 'time', 'weights', or a list"),
        ({"cut": 4, "stages": 2}, "`cut` must be 'time', 'weights', or a list"),
        (
            {"stages": 4, "cut": ["a", "b"]},
            "one name less than there are stages. Received: stages=4",
        ),
    ],
)
def test_a_wrong_argument_is_one_line(options, message):
    with pytest.raises(ValueError, match=message) as raised:
        Pipeline(**options)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("ranks, message", [(3, "Received: 3 ranks, stages=2. Start 2 or 4"), (1, "Start 2$")])
def test_ranks_must_be_whole_pipelines(ranks, message):
    with pytest.raises(ValueError, match=message):
        Pipeline(stages=2).check(ranks)


def test_one_process_trains_as_without_a_pipeline():
    called.note("shard")
    distribute = Distribute("ring", model_parallel=Pipeline(stages=3))
    assert mesh.ranks_of_worker() == 1
    assert "shard" in called.names
    assert distribute is not None


def test_a_rank_without_data_takes_part_in_the_steps_of_others(run_ranks):
    def on_rank(comm):
        left, kinds = 3 - comm.rank, []
        while True:
            met = meet(comm, Kind.STEP if left > 0 else Kind.END, 5 * (left > 0), False, 0.1)
            kinds.append((met.kind.name, sum(met.samples)))
            left -= 1
            if met.kind is Kind.END:
                return kinds

    for kinds in run_ranks(2, on_rank):
        assert kinds == [("STEP", 10), ("STEP", 10), ("STEP", 5), ("END", 0)]


def test_what_one_rank_wants_all_know(run_ranks):
    def on_rank(comm):
        return meet(comm, Kind.DECISION, 0, comm.rank == 2, 0.1 * (1 + comm.rank))

    for met in run_ranks(3, on_rank):
        assert met.stops
        assert met.learning_rate == 0.1


def test_ranks_that_do_different_things_are_told_so(run_ranks):
    with pytest.raises(DesyncError, match=r"step on rank 1, decision on rank 0\. Give all of them the same callbacks"):
        run_ranks(2, lambda comm: meet(comm, Kind.STEP if comm.rank else Kind.DECISION, 0, False, 0.1))


def test_servers_are_no_stages(run_ranks):
    def on_rank(comm):
        comm.servers = 1
        with pytest.raises(ValueError, match=r"have their weights themselves\. Received: 1 servers\. Start without"):
            Distribute(communicator=comm, model_parallel=Pipeline(2))

    run_ranks(3, on_rank)
