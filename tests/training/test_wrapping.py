"""Which optimizers of a model become distributed ones."""

import keras

from easyscale.optimizer import DistributedOptimizer
from easyscale.training.wrapping import wrap_all

NONE = dict.fromkeys(("exchange", "replication", "update", "compression", "bucket_bytes", "communicator"))


class Several(keras.Model):
    def __init__(self):
        super().__init__()
        self.one, self.name_of_one = keras.optimizers.SGD(), "one"
        self.listed = [keras.optimizers.Adam(), self.one]
        self.named = {"a": keras.optimizers.Lion(), "b": 3}


def test_optimizers_among_attributes_and_in_lists_and_dicts_are_wrapped_once():
    model, made = Several(), []
    found = wrap_all(model, NONE, made)
    assert [type(one.inner_optimizer).__name__ for one in found] == ["Adam", "SGD", "Lion"]
    assert all(isinstance(one, DistributedOptimizer) for one in found)
    assert [*model.listed, model.named["a"]] == found and model.one is model.listed[1]
    assert wrap_all(model, NONE, made) == found
