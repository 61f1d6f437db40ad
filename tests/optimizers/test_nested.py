"""Optimizers that stand in others."""

import keras
import numpy as np
import pytest

from easyscale.optimizers.nested import all_variables, inside
from easyscale.optimizers.renewed import make_anew


def _built(optimizer):
    optimizer.build([keras.Variable(np.zeros((2, 3), "float32"), name="kernel")])
    return optimizer


@pytest.mark.parametrize("scales", [False, True])
def test_the_product_of_nadam_is_among_its_variables_wherever_it_stands(scales):
    nadam = keras.optimizers.Nadam()
    optimizer = _built(keras.optimizers.LossScaleOptimizer(nadam) if scales else nadam)
    found = all_variables(optimizer)
    assert sum(variable is nadam._u_product for variable in found) == 1
    assert found[: len(optimizer.variables)] == optimizer.variables
    assert len({id(variable) for variable in found}) == len(found)


def test_an_optimizer_that_is_made_anew_excludes_the_same_weights_wherever_it_stands():
    optimizer = keras.optimizers.SGD(weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    bias = keras.Variable(np.zeros(3, "float32"), name="bias")
    for wrapped in (optimizer, keras.optimizers.LossScaleOptimizer(optimizer)):
        (own, *_) = inside(new := make_anew(wrapped)) or [new]
        own.build([bias])  # without which Keras 3.16 does not say
        assert not own._use_weight_decay(bias)
