"""How long layers take: each has a time, and measuring changes nothing. How long is for the benchmarks."""

import keras
import numpy as np
import pytest
from graphs import dense_net, shared_layer, two_by_two, u_net

from easyscale import backend as backends
from easyscale.parallel.pipeline.cut import cut_model
from easyscale.parallel.pipeline.layer_times import layer_times


def words():
    inputs = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(10, 4, mask_zero=True)(inputs)
    x = keras.layers.Dropout(0.5)(keras.layers.LSTM(4, return_sequences=True)(x))
    return keras.Model(inputs, keras.layers.Dense(2)(x))


def moving():
    layers = [keras.layers.Conv2D(2, 3), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)]
    return keras.Sequential([keras.Input((6, 6, 1)), *layers, keras.layers.Flatten(), keras.layers.Dense(2)])


@pytest.mark.parametrize("build", [dense_net, shared_layer, two_by_two, u_net, words, moving])
def test_each_call_has_a_time_and_the_model_is_as_it_was(build):
    model = build()
    before = [np.array(variable) for variable in model.variables]
    graph = cut_model(model, stages=1).graph
    times = layer_times(graph, backends.get(), samples=3)
    assert len(times) == len(graph.nodes)
    assert min(times) > 0
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(variable, value)


def test_a_cut_by_time_is_not_that_by_weights_and_each_stage_has_weights():
    model = moving()
    names = [node.operation.name for node in cut_model(model, stages=1).graph.nodes]
    assert len(names) == 5
    assert [layer.name for layer in cut_model(model, 2).stages[1].layers] == names[2:]
    first_is_slow, flatten_is_slow = (
        cut_model(model, 2, times=[9, 1, 1, 1, 1]),
        cut_model(model, 2, times=[1, 1, 1, 9, 1]),
    )
    assert [layer.name for layer in first_is_slow.stages[0].layers] == names[:1]
    assert [layer.name for layer in flatten_is_slow.stages[0].layers] == names[:3]
    header, first, second = str(first_is_slow).splitlines()
    assert [header[(column := header.index("ms")) :][:2], first[column:][:7], second[column:][:7]] == [
        "ms",
        "9000.00",
        "4000.00",
    ]
