"""The optimizers of stages: whether together they have the state of the model's one."""

import keras
import numpy as np
import pytest

from easyscale import communicator
from easyscale.training.pipelined.optimizer import StageOptimizer, build_whole, keyed


def part(units):
    inputs = keras.Input((4,))
    return keras.Model(inputs, keras.layers.Dense(units, name="fc")(inputs))


def layers_of_one_name():
    return keras.Sequential([keras.Input((4,)), part(4), part(4)])


def layers_of_two_sizes():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(2)])


@pytest.mark.parametrize("build", [layers_of_one_name, layers_of_two_sizes])
@pytest.mark.parametrize(
    "make",
    [
        lambda: keras.optimizers.Adam(gradient_accumulation_steps=2),
        keras.optimizers.Adafactor,
        keras.optimizers.Nadam,
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adafactor()),
    ],
    ids=["Adam", "Adafactor", "Nadam", "scaled"],
)
def test_stages_take_the_state_of_their_weights_and_give_it_back(make, build):
    model = build()
    model.compile(make(), "mse")
    build_whole(model)
    states = [state for state in model.optimizer.variables if len(state.shape)]
    for number, one in enumerate(states):
        one.assign(np.full(one.shape, number))
    whole = {}
    for variables in (model.trainable_variables[:2], model.trainable_variables[2:]):
        stage = StageOptimizer(model, variables, communicator.get("local"), {})
        for key, value in stage.own_state().items():
            whole.setdefault(key, value.copy())
    for one in states:
        one.assign(np.full(one.shape, -1))
    variables = keyed(model.optimizer, model, model.trainable_variables)
    assert variables.keys() == whole.keys()
    for key, variable in variables.items():
        variable.assign(whole[key])
    for number, one in enumerate(states):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(one), number)


def test_a_stage_of_layers_of_one_name_has_the_state_of_each():
    model = layers_of_one_name()
    model.compile(keras.optimizers.Adam(), "mse")
    optimizer = StageOptimizer(model, model.trainable_variables, communicator.get("local"), {})
    assert len(optimizer.own_state()) == 8
