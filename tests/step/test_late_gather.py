"""Weights that come back while the next step begins; ranks are threads."""

import threading

import numpy as np
import pytest
import tensorflow as tf

from easyscale import backend, exchange
from easyscale.errors import PeerError
from easyscale.layout.shards import Shards
from easyscale.layout.specs import specs_of
from easyscale.step.late_gather import LateGather
from easyscale.step.shared import Shared

LENGTHS = [40, 3, 40]  # in buckets of 100 bytes: [0], [1, 2]


def _late(comm):
    """Return a late gather, the whole variables, which are 1, and this rank's parts of new ones, which are 2, 3, 4."""
    variables = [tf.Variable(np.ones(length, "float32")) for length in LENGTHS]
    shards = Shards(exchange.get("ring", comm), specs_of(variables), 100)
    assert [[slot.index for slot in one.slots] for one in shards.buckets] == [[0], [1, 2]]
    parts = {
        number: tf.Variable(np.full(part.stop - part.start, 2.0 + number, "float32"))
        for number, part in enumerate(shards.parts)
    }
    return LateGather(Shared(comm, backend.get()), shards, variables), variables, parts


def _values(variables):
    return [set(one.numpy().tolist()) for one in variables]


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("how", ["receive", "settle"])
def test_variables_have_the_weights_of_all_ranks_when_they_have_come(run_ranks, size, how):
    def on_rank(comm):
        late, variables, parts = _late(comm)
        late.send(parts)
        before = _values(variables)
        getattr(late, how)()
        after = _values(variables)
        late.settle()
        variables[1].assign(np.full(3, 9, "float32"))  # between steps, by the user
        getattr(late, how)()
        return before, after, _values(variables)

    for before, after, again in run_ranks(size, on_rank):
        assert before == [{1}, {1}, {1}]
        assert after == [{2}, {3}, {4}]
        assert again == [{2}, {9}, {4}]


def test_what_no_step_has_changed_stays(run_ranks):
    def on_rank(comm):
        late, variables, parts = _late(comm)
        late.receive()
        first = _values(variables)
        late.send({number: parts[number] for number in (0, 2)})
        late.receive()
        return first, _values(variables)

    assert run_ranks(2, on_rank) == [([{1}, {1}, {1}], [{2}, {1}, {4}])] * 2


def test_parts_are_views_of_what_variables_become(run_ranks):
    def on_rank(comm):
        late, _, parts = _late(comm)
        late.send(parts)
        late.settle()
        return _values(parts.values())

    for values in run_ranks(2, on_rank):
        assert all(value <= {2.0 + number} for number, value in enumerate(values))


def test_a_bucket_is_there_before_the_next_has_come(run_ranks):
    """The second is held up until all ranks have the first."""
    have_first = threading.Barrier(2, timeout=20)

    def on_rank(comm):
        late, variables, parts = _late(comm)
        gather, number = late._shards.gather_bucket, iter(range(2))

        def held_up(vector):
            if next(number) == 1:
                have_first.wait()
            gather(vector)

        late._shards.gather_bucket = held_up
        late.send(parts)
        assert late._wait(0).keys() == {0}
        have_first.wait()
        late.settle()
        return _values(variables[1:])

    assert run_ranks(2, on_rank) == [[{3}, {4}]] * 2


@pytest.mark.parametrize("how", ["receive", "settle"])
def test_a_step_that_ends_before_it_has_assigned_what_came_loses_nothing(run_ranks, how):
    def on_rank(comm):
        late, variables, parts = _late(comm)
        late.send(parts)
        late._take(0, [0], variables[0].numpy())
        getattr(late, how)()
        return _values(variables)

    assert run_ranks(2, on_rank) == [[{2}, {3}, {4}]] * 2


@pytest.mark.parametrize("how", ["receive", "settle"])
def test_a_failure_of_the_thread_is_raised_where_weights_are_waited_for(run_ranks, how):
    def on_rank(comm):
        late, variables, parts = _late(comm)

        def fail(vector):
            raise PeerError("rank 1 has failed")

        late._shards.gather_bucket = fail
        late.send(parts)
        with pytest.raises(Exception, match="rank 1 has failed"):
            getattr(late, how)()
        late.drop()
        late.settle()
        return _values(variables)

    assert run_ranks(2, on_rank) == [[{1}, {1}, {1}]] * 2
