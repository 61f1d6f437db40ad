"""Training loops of one's own on JAX: `DistributedOptimizer` without `fit()`."""

import contextlib
import functools
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "training"))

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import keras  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
from models import EXCHANGES, assert_as_one_process, assert_equal_ranks, conv_net, digits  # noqa: E402

import easyscale  # noqa: E402

comm = easyscale.communicator.get()
BATCH = 24  # which 1 to 4 ranks divide


def _train(optimizer, x, y, batch):
    """A loop whose gradients are compiled, and whose update stands outside of what is."""
    keras.utils.set_random_seed(1)
    model, loss_of = conv_net(), keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def loss(trained, rest, x, y):
        return loss_of(y, model.stateless_call(trained, rest, x, training=True)[0])

    gradients = jax.jit(jax.grad(loss))
    for start in range(0, len(x), batch):
        trained, rest = (
            [one.value for one in kind] for kind in (model.trainable_variables, model.non_trainable_variables)
        )
        optimizer.apply(
            gradients(trained, rest, x[start : start + batch], y[start : start + batch]), model.trainable_variables
        )
    return model


def _as_one_process(make, exchanges):
    x, y = digits(4 * BATCH)

    def distributed(exchange):
        optimizer = easyscale.DistributedOptimizer(make(), exchange)
        return _train(optimizer, *easyscale.shard(x, y), easyscale.local_batch(BATCH))

    runs = [functools.partial(distributed, name) for name in exchanges]
    return assert_as_one_process(runs, lambda: _train(make(), x, y, BATCH))


def check_a_loop_of_ones_own_with_each_exchange():
    return _as_one_process(lambda: keras.optimizers.SGD(0.1, momentum=0.9), EXCHANGES)


def check_clipping_sees_the_mean():
    return _as_one_process(lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.1), ["auto"])


def check_a_step_is_that_of_the_mean_gradient():
    variable = keras.Variable([0.0])
    optimizer = easyscale.DistributedOptimizer(keras.optimizers.SGD(1.0))
    optimizer.apply([jnp.asarray([1.0 + comm.rank])], [variable])
    np.testing.assert_allclose(variable.numpy(), [-(comm.size + 1) / 2])
    assert_equal_ranks([variable.numpy()])


def check_ranks_that_begin_with_other_weights_are_refused():
    optimizer = easyscale.DistributedOptimizer(keras.optimizers.SGD(1.0))
    variables = [keras.Variable([0.0]), keras.Variable([float(comm.rank)])]
    expected = contextlib.nullcontext()
    if comm.size > 1:
        expected = pytest.raises(easyscale.DesyncError, match="Received: other weights than rank 0's on rank 1. Call")
    with expected:
        optimizer.apply([jnp.asarray([1.0])] * 2, variables)


def check_an_exchange_inside_of_jit_is_refused():
    variable = keras.Variable([0.0])
    optimizer = easyscale.DistributedOptimizer(keras.optimizers.SGD(1.0))
    optimizer.build([variable])
    state = [one.value for one in optimizer.variables]
    step = jax.jit(lambda gradient: optimizer.stateless_apply(state, [gradient], [variable.value]))
    expected = contextlib.nullcontext()
    if comm.size > 1:
        expected = pytest.raises(ValueError, match="must not be inside of `jax.jit`. Received: a gradient that is trac")
    with expected:
        step(jnp.asarray([1.0]))
