"""Cutting a model: which layers are where, what crosses, and what cannot be cut."""

import keras
import numpy as np
import pytest
from graphs import dense_net, normalized, shared_layer, tied, two_by_two, u_net

from easyscale import keras_internals
from easyscale.parallel.pipeline.cut import cut_model


def names(cut):
    return [[layer.name for layer in stage.layers] for stage in cut.stages]


def crossings(stage):
    return [(one.tensor.name, one.source, one.target) for one in stage.sends]


def crossing_layers(cut):
    """(layer that makes it, from, to, whether a gradient comes back) of each tensor that crosses."""
    made = {id(tensor): node.operation.name for node in cut.graph.nodes for tensor in node.outputs}
    made |= {id(tensor): tensor.name for tensor in cut.graph.inputs}
    return [
        (made[id(one.tensor)], one.source, one.target, one.has_gradient) for stage in cut.stages for one in stage.sends
    ]


def run_in_stages(cut, inputs):
    """Run a model stage by stage, with nothing but what crosses."""
    values = dict(zip(map(id, cut.graph.inputs), inputs, strict=True))
    mail, outputs = {}, {}
    for stage in cut.stages:
        own = dict(values) if stage.number == 0 else {}
        own |= {id(one.tensor): mail[id(one.tensor), one.target] for one in stage.receives}
        for node in stage.nodes:
            args, kwargs = node.arguments.fill_in(own)
            results = keras.tree.flatten(keras_internals.with_training(node.operation, True)(*args, **kwargs))
            own |= dict(zip(map(id, node.outputs), results, strict=True))
        mail |= {(id(one.tensor), one.target): own[id(one.tensor)] for one in stage.sends}
        outputs = own
    return keras.tree.map_structure(lambda tensor: outputs[id(tensor)], cut.graph.outputs)


def inputs_of(model, count=5):
    generator = np.random.default_rng(0)
    return [
        keras.ops.convert_to_tensor(generator.normal(size=(count, *one.shape[1:])).astype("float32"))
        for one in model.inputs
    ]


# Where it is cut


def test_by_names_each_is_the_last_of_its_stage():
    cut = cut_model(dense_net(), names=["tanh_0", "tanh_2"])
    assert names(cut) == [["dense_0", "tanh_0"], ["dense_1", "tanh_1", "dense_2", "tanh_2"], ["dense_3"]]


def test_names_may_come_in_any_order():
    model = dense_net()
    assert names(cut_model(model, names=["tanh_2", "tanh_0"])) == names(cut_model(model, names=["tanh_0", "tanh_2"]))


def test_by_weights_the_largest_stage_is_as_small_as_it_can_be():
    # Weights: 13 * 32 = 416, 33 * 24 = 792, 25 * 16 = 400, 17 * 10 = 170.
    cut = cut_model(dense_net(), stages=2)
    assert [stage.weights for stage in cut.stages] == [416, 792 + 400 + 170] or [
        stage.weights for stage in cut.stages
    ] == [416 + 792, 400 + 170]
    assert max(stage.weights for stage in cut.stages) == 416 + 792
    assert [stage.weights for stage in cut_model(dense_net(), stages=3).stages] == [416, 792, 570]


def test_of_equal_cuts_the_one_is_taken_where_least_crosses():
    """A layer without weights goes to the side where it makes what is sent smaller."""
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(64, name="a"),
            layers.Reshape((8, 8), name="shape"),
            layers.GlobalAveragePooling1D(name="smaller"),
            layers.RepeatVector(9, name="larger"),
            layers.Flatten(name="flat"),
            layers.Dense(4, name="b"),
        ]
    )
    assert names(cut_model(model, stages=2))[0] == ["a", "shape", "smaller"]
    assert cut_model(model, stages=2).stages[0].sends[0].nbytes == 8 * 4


# What crosses


def test_a_skip_goes_straight_to_where_it_is_needed():
    cut = cut_model(u_net(), names=["pool_1", "larger_2"])
    assert names(cut)[1] == ["down_2", "pool_2", "bottom", "larger_2"]
    assert crossing_layers(cut) == [
        ("pool_1", 0, 1, True),
        ("down_1", 0, 2, True),
        ("down_2", 1, 2, True),
        ("larger_2", 1, 2, True),
    ]
    sent = [one.nbytes for stage in cut.stages for one in stage.sends]
    assert sent == [4 * 4 * 4 * 4, 8 * 8 * 4 * 4, 4 * 4 * 6 * 4, 4 * 4 * 8 * 4]


def test_late_inputs_come_from_the_first_stage_without_a_gradient_and_early_outputs_go_to_the_last():
    cut = cut_model(two_by_two(), names=["first", "second"])
    assert set(crossing_layers(cut)) == {
        ("first", 0, 1, True),
        ("b", 0, 2, False),
        *([("early", 1, 2, True)] if "early" in names(cut)[1] else [("first", 0, 2, True)]),
        ("second", 1, 2, True),
    }


def test_what_is_sent_in_an_order_is_received_in_that_order():
    cut = cut_model(u_net(), stages=4)
    for source in cut.stages:
        for target in cut.stages:
            sent = [id(one.tensor) for one in source.sends if one.target == target.number]
            came = [id(one.tensor) for one in target.receives if one.source == source.number]
            assert sent == came


@pytest.mark.parametrize("build", [dense_net, u_net, two_by_two, shared_layer, normalized])
@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_stages_one_after_the_other_are_the_model(build, stages):
    model = build()
    if build is shared_layer and stages > 3:
        return
    cut = cut_model(model, stages=stages)
    inputs = inputs_of(model)
    results = keras.tree.flatten(run_in_stages(cut, inputs))
    whole = keras.tree.flatten(model(keras.tree.pack_sequence_as(cut.graph.model.input, inputs), training=True))
    for ours, expected in zip(results, whole, strict=True):
        np.testing.assert_array_equal(ours, expected)
    variables = [id(variable) for stage in cut.stages for variable in stage.variables]
    assert sorted(variables) == sorted(map(id, model.variables)), "each variable is on one stage"


def test_a_weight_of_layers_on_several_stages_is_trained_by_the_first():
    cut = cut_model(tied(), names=["attention_0", "attention_1"])
    (one,) = cut.tied
    assert (one.variable.path.split("/")[-1], one.owner, one.users) == ("embeddings", 0, [2])
    assert [variable is one.variable for variable in cut.stages[2].borrowed] == [True]
    assert not any(variable is one.variable for variable in cut.stages[2].trainable_variables)
    assert (
        str(cut).splitlines()[-1]
        == "`words/embeddings` of stage 0 is also on 2: its gradient and value travel once a step"
    )


def test_a_layer_that_is_called_on_two_stages_has_its_weights_on_the_first():
    cut = cut_model(shared_layer(), names=["between"])
    assert names(cut) == [["shared", "between"], ["shared", "last"]] or names(cut)[1] == ["shared", "last"]
    assert {(one.owner, *one.users) for one in cut.tied} == {(0, 1)} and len(cut.tied) == 2


def test_a_layer_that_is_called_twice_without_weights_may_be_on_two_stages():
    inputs = keras.Input((4,))
    flat = keras.layers.Activation("tanh", name="twice")
    x = flat(keras.layers.Dense(4, name="a")(inputs))
    model = keras.Model(inputs, flat(keras.layers.Dense(4, name="b")(x)))
    cut = cut_model(model, stages=2)
    assert [stage.weights for stage in cut.stages] == [20, 20]


def test_text_may_go_in_and_must_not_cross():
    inputs = keras.Input((1,), dtype="string", name="text")
    numbers = keras.layers.StringLookup(vocabulary=["a", "b"], name="look_up")(inputs)
    x = keras.layers.Dense(4, name="first")(keras.layers.Flatten()(keras.layers.Embedding(4, 3, name="words")(numbers)))
    model = keras.Model(inputs, keras.layers.Dense(2, name="last")(x))
    assert names(cut_model(model, stages=2))[0][0] == "look_up"
    late = keras.layers.StringLookup(vocabulary=["a"], output_mode="one_hot")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Concatenate()([x, late])))
    with pytest.raises(ValueError, match="a cut must be numbers.*`text`.*of text. Cut behind what uses it"):
        cut_model(model, names=["words"])


def test_a_model_in_the_model_is_one_layer():
    inputs = keras.Input((12,))
    inner = dense_net()
    model = keras.Model(inputs, keras.layers.Dense(3, name="head")(inner(inputs)))
    assert names(cut_model(model, stages=2)) == [[inner.name], ["head"]]


def test_the_model_is_left_as_it_was():
    model = u_net()
    before = model.get_config()
    cut_model(model, stages=3)
    assert model.get_config() == before
    assert model.get_layer("bottom").output.shape == (None, 2, 2, 8)


def test_the_table_shows_layers_weights_and_bytes():
    table = str(cut_model(u_net(), names=["pool_1", "larger_2"]))
    assert table.splitlines() == [
        "stage  layers                   weights  sends for each sample",
        "0      down_1 ... pool_1 (2)    40       256 bytes to 1, 1,024 bytes to 2",
        "1      down_2 ... larger_2 (4)  662      896 bytes to 2",
        "2      join_2 ... mask (6)      1,131    -",
    ]


# What cannot be cut


def fixed_batch():
    return keras.Sequential([keras.Input((3,), batch_size=8), keras.layers.Dense(2), keras.layers.Dense(2)])


def unknown_length():
    inputs = keras.Input((None, 3))
    return keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Dense(4)(inputs)))


def twice_normalized():
    inputs, normal = keras.Input((4,)), keras.layers.BatchNormalization(name="normal")
    x = keras.layers.Dense(4, name="b")(normal(keras.layers.Dense(4, name="a")(inputs)))
    return keras.Model(inputs, keras.layers.Dense(4)(normal(x)))


class Subclassed(keras.Model):
    def call(self, inputs):
        return inputs


@pytest.mark.parametrize(
    "build, options, message",
    [
        (Subclassed, {"stages": 2}, r"must be Sequential or Functional.*Received: Subclassed .*keras\.Model\(inputs"),
        (lambda: keras.Sequential([keras.layers.Dense(2)]), {"stages": 2}, r"Give it a `keras\.Input\(shape\)`"),
        (dense_net, {"names": ["dense_0", "tahn_1"]}, r"no layer 'tahn_1'\. Did you mean 'tanh_1'\?"),
        (dense_net, {"names": ["xyz"]}, r"no layer 'xyz'\. Its first ones are \['dense_0'"),
        (dense_net, {"names": "dense_0"}, r"`cut` must be a list of names.*Write \['dense_0'\]"),
        (dense_net, {"names": ["dense_0", "tanh_0"]}, r"leaves stage 1 of 3 without any\. Cut at other layers"),
        (dense_net, {"names": ["dense_3"]}, r"leaves stage 1 of 2 without any"),
        (
            dense_net,
            {"stages": 5},
            r"has layers with weights of their own to train\. .* a model with 4 such layers",
        ),
        (shared_layer, {"stages": 4}, r"own to train\. Received: stages=4, and a model with 3 such"),
        (twice_normalized, {"names": ["b"]}, r"must be on one stage\. Received: 'normal' on stages 0 and 1"),
        (fixed_batch, {"stages": 2}, r"input of shape \(8, 3\)\. Leave `batch_size` out"),
        (
            unknown_length,
            {"stages": 2},
            r"of a fixed shape for each sample\. .*\(None, None, 4\) from stage 0 to 1",
        ),
    ],
)
def test_what_cannot_be_cut_is_told_in_one_line(build, options, message):
    with pytest.raises(ValueError, match=message) as raised:
        cut_model(build(), **options)
    assert "\n" not in str(raised.value)


class Own(keras.layers.MultiHeadAttention):
    pass


@pytest.mark.parametrize(
    ("attend", "is_masked"), [(Own(2, 4), False), (keras.layers.GroupQueryAttention(4, 2, 1), True)]
)
def test_what_is_added_to_attention_has_a_mask_if_that_leaves_it(attend, is_masked):
    inputs = keras.Input((5,), dtype="int32")
    x = keras.layers.Embedding(10, 8, mask_zero=True)(inputs)
    model = keras.Model(inputs, keras.layers.Add()([attend(x, x), x]))
    assert [mask is not None for mask in cut_model(model, stages=1).graph.masks] == [is_masked]
    found = keras_internals.mask_of(model(np.ones((2, 5), "int32")))
    assert (found is not None) == is_masked  # as it is when Keras calls it
