"""Training loops of one's own on other backends: `DistributedOptimizer` without `fit()`."""

import contextlib
import functools
import importlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "training"))

import keras  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
from models import EXCHANGES, assert_as_one_process, assert_equal_ranks, digits  # noqa: E402

import easyscale  # noqa: E402

comm = easyscale.communicator.get()
BATCH = 24  # which 1 to 4 ranks divide
sys.path.insert(0, str(Path(__file__).parents[1] / keras.backend.backend()))
train = importlib.import_module("own_loop").train


def _as_one_process(make, exchanges):
    x, y = digits(4 * BATCH)

    def distributed(exchange):
        optimizer = easyscale.DistributedOptimizer(make(), exchange)
        return train(optimizer, *easyscale.shard(x, y), easyscale.local_batch(BATCH))

    runs = [functools.partial(distributed, name) for name in exchanges]
    return assert_as_one_process(runs, lambda: train(make(), x, y, BATCH))


def check_a_loop_of_ones_own_with_each_exchange():
    return _as_one_process(lambda: keras.optimizers.SGD(0.1, momentum=0.9), EXCHANGES)


def check_clipping_sees_the_mean():
    return _as_one_process(lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.1), ["auto"])


def check_a_step_is_that_of_the_mean_gradient():
    variable = keras.Variable([0.0])
    optimizer = easyscale.DistributedOptimizer(keras.optimizers.SGD(1.0))
    optimizer.apply([keras.ops.convert_to_tensor([1.0 + comm.rank])], [variable])
    np.testing.assert_allclose(variable.numpy(), [-(comm.size + 1) / 2])
    assert_equal_ranks([variable.numpy()])


def check_ranks_that_begin_with_other_weights_are_refused():
    optimizer = easyscale.DistributedOptimizer(keras.optimizers.SGD(1.0))
    variables = [keras.Variable([0.0]), keras.Variable([float(comm.rank)])]
    expected = contextlib.nullcontext()
    if comm.size > 1:
        expected = pytest.raises(easyscale.DesyncError, match="Received: other weights than rank 0's on rank 1. Call")
    with expected:
        optimizer.apply([keras.ops.convert_to_tensor([1.0])] * 2, variables)
