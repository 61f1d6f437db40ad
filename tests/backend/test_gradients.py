"""The mean of all workers' gradients; ranks are threads."""

from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from easyscale import backend, exchange
from easyscale.step.context import Accumulation, StepContext
from easyscale.step.gradients import Gradients
from easyscale.step.reduce_config import ReduceConfig
from easyscale.step.shared import Shared


def _gradients(comm, densify=False, bucket_bytes=None):
    compiled = backend.get().compiled_update(comm, has_copies=False)
    shared = Shared(comm, backend.get())
    return Gradients(ReduceConfig(exchange.get("ring", comm), bucket_bytes, fixed=True), shared, densify, compiled)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("bucket_bytes", [None, 8])
def test_each_gradient_has_the_weight_of_its_samples(run_ranks, size, bucket_bytes):
    def on_rank(comm):
        variables = [tf.Variable(np.zeros(shape, "float32")) for shape in ([3], [2, 2], [1])]
        made = [tf.fill(one.shape, float(number + comm.rank)) for number, one in enumerate(variables[:2])]
        context = StepContext(weight=comm.rank + 1)
        means = _gradients(comm, bucket_bytes=bucket_bytes).reduce(context, [*made, None], variables)
        return [one if one is None else one.numpy() for one in means]

    weights = np.arange(1, size + 1)
    mean = (weights * np.arange(size)).sum() / weights.sum()
    for first, second, absent in run_ranks(size, on_rank):
        np.testing.assert_allclose(first, np.full(3, mean), rtol=1e-6)
        np.testing.assert_allclose(second, np.full((2, 2), 1 + mean), rtol=1e-6)
        assert absent is None


def test_gradients_of_the_same_variables_may_have_other_positions_in_a_later_step(run_ranks):
    def on_rank(comm):
        first, second, without = (tf.Variable([0.0]) for _ in range(3))
        gradients, own = _gradients(comm), [tf.constant([1.0 + comm.rank]), tf.constant([10.0 + comm.rank])]
        gradients.reduce(StepContext(), own, [first, second])
        means = gradients.reduce(StepContext(), [own[0], None, own[1]], [first, without, second])
        return [one if one is None else one.numpy().item() for one in means]

    assert run_ranks(2, on_rank) == [[1.5, None, 10.5]] * 2


def test_moving_statistics_become_their_mean(run_ranks):
    def on_rank(comm):
        moving, variable = tf.Variable([float(comm.rank)]), tf.Variable([0.0])
        context = StepContext(weight=4 if comm.rank == 0 else 12, moving=[moving])
        _gradients(comm).reduce(context, [tf.constant([1.0])], [variable])
        return moving.numpy()

    for moving in run_ranks(2, on_rank):
        np.testing.assert_allclose(moving, [0.75])


@pytest.mark.parametrize(
    ("due", "gradient", "summed"), [(False, [0.25, 1.5], [5.0, 5.0]), (True, [11.75] * 2, [0.0, 0.0])]
)
def test_moving_statistics_travel_also_where_gradients_are_only_added_up(run_ranks, due, gradient, summed):
    def on_rank(comm):
        moving, variable, sums = tf.Variable([float(comm.rank)]), tf.Variable([0.0]), tf.Variable([5.0])
        context = StepContext(weight=4 if comm.rank == 0 else 12, moving=[moving])
        accumulation = Accumulation(tf.constant(due), [sums], may_overflow=False)
        own = tf.constant([1.0 + comm.rank])
        (mean,) = _gradients(comm).reduce(context, [own], [variable], accumulation)
        return moving.numpy().item(), mean.numpy().item(), sums.numpy().item()

    found = list(zip(*run_ranks(2, on_rank), strict=True))
    np.testing.assert_allclose(found, [[0.75, 0.75], gradient, summed])


@pytest.mark.parametrize("densify", [False, True])
def test_rows_of_all_workers_stand_below_each_other(run_ranks, densify):
    def on_rank(comm):
        variable = tf.Variable(np.zeros((2, 1), "float32"))
        rows = tf.IndexedSlices(tf.constant([[2.0]]), tf.constant([comm.rank], tf.int64), tf.constant([2, 1], tf.int64))
        (mean,) = _gradients(comm, densify).reduce(StepContext(), [rows], [variable])
        return tf.convert_to_tensor(mean).numpy()

    for mean in run_ranks(2, on_rank):
        np.testing.assert_allclose(mean, [[1.0], [1.0]])


def test_a_worker_gets_the_parts_that_it_owns(run_ranks):
    def on_rank(comm):
        gradients, variable = _gradients(comm), tf.Variable(np.zeros(6, "float32"))
        shards = gradients.shard([variable])
        (own,) = gradients.reduce(StepContext(), [tf.range(6.0) * (comm.rank + 1)], [variable], shards=shards)
        return shards.parts[0], own.numpy()

    whole = np.zeros(6)
    for part, own in run_ranks(2, on_rank):
        whole[part] = own
    np.testing.assert_allclose(whole, 1.5 * np.arange(6))


def _is_late(comm, bucket_bytes, lengths=(40, 40)):
    gradients = _gradients(comm, bucket_bytes=bucket_bytes)
    variables = [tf.Variable(np.zeros(length, "float32")) for length in lengths]
    return gradients.late_gather(gradients.shard(variables), variables) is not None


def test_weights_come_in_the_next_step_where_gradients_leave_in_several_buckets(run_ranks):
    assert run_ranks(2, lambda comm: _is_late(comm, 100)) == [True, True]
    assert run_ranks(2, lambda comm: _is_late(comm, None)) == [False, False]
    assert run_ranks(2, lambda comm: _is_late(comm, 100, lengths=[40])) == [False, False]


def test_workers_that_may_fail_do_not_wait_for_weights_in_the_next_step(run_ranks):
    def on_rank(comm):
        with mock.patch.object(type(comm.membership), "is_elastic", True):
            return _is_late(comm, 100)

    assert run_ranks(1, on_rank) == [False]
