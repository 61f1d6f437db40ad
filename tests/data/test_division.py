"""Data that are divided anew: among the workers that there are at the moment, when some have failed."""

import numpy as np
import pytest

import easyscale
from easyscale.data import division

SIZE, LEFT = 4, [0, 2, 3]  # of four workers three are left


@pytest.fixture
def lose(run_ranks):
    """`lose(act)`: the three results of `act(comm, lose_one)`, in which all must call `lose_one`."""

    def on_all(act):
        def on_rank(comm):
            comm.membership.keeps_global_batch = True

            def lose_one():
                if comm.rank in LEFT:
                    comm.rank, comm.size, comm.membership.initial_ranks = LEFT.index(comm.rank), len(LEFT), LEFT

            return act(comm, lose_one)

        results = run_ranks(SIZE, on_rank)
        return [results[rank] for rank in LEFT]

    return on_all


def test_a_part_is_known_by_itself_and_not_by_what_was_made_of_it(lose):
    x, y = np.arange(26).reshape(13, 2), np.arange(13)

    def act(comm, lose_one):
        local = easyscale.shard({"a": x}, y, communicator=comm)
        whole = division.whole_of(*local, None)
        assert division.whole_of(local[0]["a"] + 1) is None
        assert division.whole_of(local[0], local[1] + 1) is None
        assert division.whole_of() is None
        assert whole.workers == [0, 1, 2, 3]
        assert division.count(whole.data) == 13
        rows = division.rows(whole.data, np.array([3, 5]))
        np.testing.assert_array_equal(rows[0]["a"], [[6, 7], [10, 11]])
        assert rows[1].tolist() == [3, 5]
        assert rows[2] is None
        lose_one()
        local = easyscale.shard(x, x, communicator=comm)
        return division.whole_of(*local).workers

    assert lose(act) == [LEFT] * 3


def test_parts_are_forgotten_with_their_arrays(lose):
    def act(comm, lose_one):
        part = easyscale.shard(np.arange(8), communicator=comm)
        number = id(part)
        assert number in division._wholes
        del part
        return number

    assert not {*division._wholes} & {*lose(act)}


def test_without_an_elastic_job_nothing_is_kept(run_ranks):
    parts = run_ranks(2, lambda comm: easyscale.shard(np.arange(8), communicator=comm))
    assert [division.whole_of(part) for part in parts] == [None, None]


@pytest.mark.parametrize("kind", ["tf", "tf, odd batches", "keras"])
def test_batches_are_divided_among_the_workers_of_the_moment(lose, kind):
    import keras
    import tensorflow as tf

    samples, batch = 40, 6 if kind == "tf, odd batches" else 8

    class Numbers(keras.utils.PyDataset):
        def __len__(self):
            return samples // batch

        def __getitem__(self, index):
            return (np.arange(index * batch, (index + 1) * batch),)

    def act(comm, lose_one):
        dataset = tf.data.Dataset.range(samples).batch(batch, drop_remainder=kind == "tf")
        local = easyscale.shard(Numbers() if kind == "keras" else dataset, communicator=comm)
        assert division.divides_itself(local)
        assert not division.divides_itself(dataset)
        if kind == "keras":
            before = local[0][0].tolist()
            lose_one()
            return [before, *(local[index][0].tolist() for index in range(1, local.num_batches))]
        if kind == "tf":
            assert local.cardinality() == samples // batch
        assert division.divides_itself(local.map(lambda x: x * 1))
        assert local.element_spec.shape.as_list() == [None]
        options = tf.data.Options()
        options.experimental_optimization.inject_prefetch = False  # what has been prepared stays as it is
        batches = iter(local.with_options(options))
        before = next(batches).numpy().tolist()
        lose_one()
        return [before, *(batch.numpy().tolist() for batch in batches)]

    first, *others = zip(*lose(act), strict=True)
    assert sorted(sum(first, [])) == [number for number in range(batch) if number % SIZE != 1]
    assert others
    for index, batches in enumerate(others, 1):
        assert sorted(sum(batches, [])) == list(range(index * batch, min((index + 1) * batch, samples)))


def test_a_part_that_is_divided_again_is_told_of(run_ranks, recwarn):
    def on_rank(comm):
        x, y = easyscale.shard(np.arange(40), np.arange(40), communicator=comm)
        easyscale.shard(x, y, communicator=comm)
        easyscale.shard(x + 1, communicator=comm)  # may be anything

    run_ranks(2, on_rank)
    told = [str(warning.message) for warning in recwarn]
    assert len(told) >= 1
    assert all(message.startswith("data must be divided once. Received: a part that `shard`") for message in told)
    assert "each worker has 25.0% of the data" in told[0]
    count = len(recwarn)
    run_ranks(1, on_rank)
    assert len(recwarn) == count
