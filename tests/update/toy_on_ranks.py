"""An update as somebody adds one, in one file: that of `replicated.py`, but for its step."""

import keras
import numpy as np
from covering import full

import easyscale
from easyscale import backend
from easyscale.update import available
from easyscale.update.accumulated import unscaled
from easyscale.update.element_wise import is_of_keras
from easyscale.update.replicated import ReplicatedUpdate


class BySign(ReplicatedUpdate):
    """Each weight moves by the sign of the mean gradient."""

    name = "by_sign"
    needs = "an optimizer that does not accumulate gradients"

    @classmethod
    def why_not(cls, optimizer, variables):
        return "it does" if getattr(unscaled(optimizer), "gradient_accumulation_steps", None) else None

    def apply(self, context, gradients, variables):
        replication = self._connect()
        means = replication.reduce(context, gradients, variables)
        if context.adjust is not None:  # all stages of a pipeline clip together
            means = context.adjust(means, backend.get().sums_of_squares)
        signs = [None if mean is None else keras.ops.sign(mean) for mean in means]
        replication.update(self._optimizer.apply, signs, variables, is_of_keras(self._optimizer))


@full
def check_an_update_is_asked_for_by_its_name():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, use_bias=False)])
    model.unused = keras.layers.Dense(1)
    model.unused.build((None, 4))  # has no gradients
    before = model.get_weights()[0]
    model.compile(keras.optimizers.SGD(0.25), "mse")
    x = np.random.default_rng(0).normal(size=(24, 4)).astype("float32")
    x, y = easyscale.shard(x, x.sum(axis=1, keepdims=True) + 10)
    callbacks = [easyscale.callbacks.Distribute("ring", update="by_sign")]
    model.fit(x, y, batch_size=easyscale.local_batch(24), epochs=2, verbose=0, callbacks=callbacks)
    moved = (model.get_weights()[0] - before) / 0.25
    assert {*np.rint(moved).ravel()} <= {-2, 0, 2}
    np.testing.assert_allclose(moved, np.rint(moved), atol=1e-5)


def check_an_update_says_with_which_optimizers_it_cannot_be_used():
    try:
        easyscale.DistributedOptimizer(keras.optimizers.SGD(gradient_accumulation_steps=2), update="by_sign")
    except ValueError as error:
        assert str(error) == (
            "`update='by_sign'` needs an optimizer that does not accumulate gradients. Received: SGD; it does. "
            "Use `update='replicated'`"
        ), error
    else:
        raise AssertionError("it was taken")


def check_a_name_that_is_not_there_is_told_those_that_are():
    try:
        easyscale.DistributedOptimizer("sgd", update="by_sing")
    except ValueError as error:
        assert f"must be one of {list(available())}" in str(error), error
        assert "Did you mean 'by_sign'?" in str(error), error
    else:
        raise AssertionError("it was taken")
