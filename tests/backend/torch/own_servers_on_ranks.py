"""Servers on PyTorch: what JAX does not have."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "training"))

import keras  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from models import assert_equal_ranks, conv_net, digits  # noqa: E402
from served_on_ranks import check_weights_without_a_gradient_stay  # noqa: E402

import easyscale  # noqa: E402
from easyscale.callbacks import Distribute  # noqa: E402

comm = easyscale.communicator.get()

__all__ = ["check_weights_without_a_gradient_stay"]


class Pair(keras.Model):
    """Two parts with an optimizer each, which its first step builds."""

    def __init__(self):
        super().__init__()
        self.first, self.second = conv_net("first"), keras.layers.Dense(10)
        self.loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def compile(self, first, second):
        super().compile()
        self.first_optimizer, self.second_optimizer = first, second

    def call(self, x):
        return self.second(self.first(x))

    def train_step(self, data):
        x, y = data
        for part, optimizer in ((self.first, self.first_optimizer), (self.second, self.second_optimizer)):
            self.zero_grad()
            loss = self.loss_of(y, self(x))
            loss.backward()
            variables = part.trainable_variables
            optimizer.apply([variable.value.grad for variable in variables], variables)
        return {"loss": loss}


def check_several_optimizers_that_the_first_step_builds():
    x, y = digits(96)

    def train(x, y, batch, **options):
        keras.utils.set_random_seed(1)
        model = Pair()
        model.compile(keras.optimizers.SGD(0.02, momentum=0.9), keras.optimizers.Adam())
        model(torch.tensor(x[:1]))
        model.fit(x, y, batch, epochs=2, shuffle=False, verbose=0, **options)
        return model.get_weights()

    data = *easyscale.shard(x, y), easyscale.local_batch(24)
    found = train(*data, callbacks=[Distribute("parameter_server")])
    assert_equal_ranks(found)
    for own, expected in zip(found, train(x, y, 24), strict=True):
        np.testing.assert_allclose(own, expected, rtol=0, atol=1e-5)
