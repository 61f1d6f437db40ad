"""LARS against the paper's algorithm, written down in NumPy and float64, and as one of Keras's optimizers."""

import keras
import numpy as np
import pytest

import easyscale
from easyscale.optimizers.lars import LARS
from easyscale.update.element_wise import is_element_wise

SHAPES = [(5, 4), (4,), (3, 2, 2, 6), ()]


def by_the_paper(weights, gradients, rate, momentum=0.9, decay=0.0, trust=1e-3):
    """You et al. 2017, algorithm 1, for several steps; layers of one dimension or none as in SGD with momentum."""
    weights = [weight.astype("float64") for weight in weights]
    velocities = [np.zeros(weight.shape) for weight in weights]
    for step in gradients:
        for layer, gradient in enumerate(step):
            w, local, beta = weights[layer], 1.0, 0.0
            if w.ndim > 1:
                beta = decay
                norm, gradient_norm = np.linalg.norm(w), np.linalg.norm(gradient)
                if norm > 0 and gradient_norm > 0:
                    local = trust * norm / (gradient_norm + beta * norm)
            velocities[layer] = momentum * velocities[layer] + rate * local * (gradient + beta * w)
            weights[layer] = w - velocities[layer]
    return weights


def _data(seed=0, steps=10):
    generator = np.random.default_rng(seed)
    weights = [generator.normal(size=shape) for shape in SHAPES]
    return weights, [[generator.normal(size=shape) for shape in SHAPES] for _ in range(steps)]


def _train(optimizer, weights, gradients, dtype="float64"):
    variables = [keras.Variable(weight, dtype=dtype) for weight in weights]
    for step in gradients:
        optimizer.apply([keras.ops.convert_to_tensor(gradient, dtype) for gradient in step], variables)
    return [keras.ops.convert_to_numpy(variable) for variable in variables]


@pytest.mark.parametrize("decay", [0.0, 5e-4, 0.1])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("trust", [1e-3, 0.02])
def test_it_is_the_papers_algorithm(decay, momentum, trust):
    weights, gradients = _data()
    ours = _train(LARS(3.2, momentum, decay, trust), weights, gradients)
    expected = by_the_paper(weights, gradients, 3.2, momentum, decay, trust)
    for weight, other in zip(ours, expected, strict=True):
        np.testing.assert_allclose(weight, other, atol=1e-6)


def test_in_float32_it_is_the_same_to_rounding():
    weights, gradients = _data()
    ours = _train(LARS(1.0, weight_decay=1e-4), weights, gradients, "float32")
    for weight, other in zip(ours, by_the_paper(weights, gradients, 1.0, decay=1e-4), strict=True):
        np.testing.assert_allclose(weight, other, rtol=1e-4, atol=1e-4)


def test_weights_or_gradients_of_zero_make_no_nan():
    weights = [np.zeros((3, 2)), np.ones((3, 2))]
    ours = _train(LARS(1.0), weights, [[np.ones((3, 2)), np.zeros((3, 2))]])
    np.testing.assert_array_equal(ours[0], -np.ones((3, 2)))  # the rate itself
    np.testing.assert_array_equal(ours[1], np.ones((3, 2)))


def test_excluded_weights_step_as_in_sgd():
    weights, gradients = _data(steps=1)
    optimizer = LARS(0.5, momentum=0.0, weight_decay=0.1)
    variables = [keras.Variable(weight, dtype="float64", name=f"layer_{index}") for index, weight in enumerate(weights)]
    optimizer.exclude_from_weight_decay(var_names=["layer_0"])
    optimizer.apply([keras.ops.convert_to_tensor(gradient) for gradient in gradients[0]], variables)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(variables[0]), weights[0] - 0.5 * gradients[0][0])


def _one_step(name, shape, **options):
    """How far a weight of ones goes with a gradient of ones."""
    variable = keras.Variable(np.ones(shape), dtype="float64", name=name)
    LARS(1.0, **options).apply([keras.ops.ones(shape, "float64")], [variable])
    return float(1 - keras.ops.convert_to_numpy(variable).reshape(-1)[0])


def test_biases_and_parameters_of_normalization_are_excluded_by_default():
    assert _one_step("kernel", (2, 3)) == pytest.approx(1e-3)  # the trust coefficient
    for name, shape in (("kernel", (3,)), ("bias", (2, 3)), ("gamma", (2, 3)), ("beta", (2, 3)), ("scale", ())):
        assert _one_step(name, shape) == 1.0


def test_a_list_of_names_is_all_that_is_excluded():
    assert _one_step("bias", (3,), exclude=[]) == pytest.approx(1e-3)
    assert _one_step("bias", (3,), exclude=["kernel"]) == pytest.approx(1e-3)
    assert _one_step("kernel", (2, 3), exclude=["kernel"]) == 1.0


def test_momentum_correction_scales_the_velocity_by_the_change_of_the_rate():
    weights, gradients = _data(steps=8)
    rates = [0.1, 0.2, 0.4, 0.8, 0.8, 0.3, 0.3, 0.1]
    expected, velocities = [weight.copy() for weight in weights], [np.zeros(weight.shape) for weight in weights]
    for step, rate in enumerate(rates):
        for layer, gradient in enumerate(gradients[step]):
            w, ratio = expected[layer], 1.0
            if w.ndim > 1:
                ratio = 1e-3 * np.linalg.norm(w) / np.linalg.norm(gradient)
            factor = rate / rates[step - 1] if step else 1.0  # Goyal et al., section 3
            velocities[layer] = 0.9 * factor * velocities[layer] + rate * ratio * gradient
            expected[layer] = w - velocities[layer]
    optimizer = LARS(rates[0], momentum_correction=True)
    variables = [keras.Variable(weight, dtype="float64") for weight in weights]
    for rate, step in zip(rates, gradients, strict=True):
        optimizer.learning_rate = rate
        optimizer.apply([keras.ops.convert_to_tensor(gradient, "float64") for gradient in step], variables)
    for variable, weight in zip(variables, expected, strict=True):
        np.testing.assert_allclose(keras.ops.convert_to_numpy(variable), weight, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("rate", [1e-9, keras.optimizers.schedules.PolynomialDecay(0.0, 5, 1.0)])
def test_however_low_the_rate_is_whole_weights_are_needed(rate):
    assert not is_element_wise(LARS(rate))
    assert is_element_wise(easyscale.optimizers.SGD(rate))


def test_norms_do_not_overflow_half_types():
    variable = keras.Variable(np.full((300, 300), 2.0), dtype="float16", name="kernel")  # its squares sum up to 360,000
    LARS(1.0, trust_coefficient=0.5).apply([keras.ops.full((300, 300), 0.5, "float16")], [variable])
    np.testing.assert_allclose(keras.ops.convert_to_numpy(variable), 1.0, rtol=1e-2)  # half of it


def test_nesterov_looks_ahead():
    weights, gradients = _data(steps=2)
    bias = 1
    ours = _train(LARS(0.1, nesterov=True), weights, gradients)[bias]
    reference = _train(keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True), weights, gradients)[bias]
    np.testing.assert_allclose(ours, reference)


def test_it_is_saved_and_loaded_as_any_optimizer():
    optimizer = LARS(2.0, 0.8, 1e-4, 0.01, True, True, ["bias"], clipnorm=1.0, name="mine")
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert type(again) is LARS
    assert again.get_config() == optimizer.get_config()
    assert easyscale.optimizers.LARS is LARS


def test_schedules_and_mixed_precision():
    keras.utils.set_random_seed(0)
    schedule = keras.optimizers.schedules.PolynomialDecay(0.2, 40, power=2)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, dtype="mixed_float16"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.LossScaleOptimizer(LARS(schedule, trust_coefficient=0.05)), "mse")
    x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
    history = model.fit(x, x.sum(axis=1), epochs=10, verbose=0).history["loss"]
    assert history[-1] < history[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"momentum": 1.5}, "`momentum` must be a number from 0 to 1. Received: momentum=1.5"),
        ({"weight_decay": -1}, "`weight_decay` must be a number of 0 or more"),
        ({"trust_coefficient": 0}, "`trust_coefficient` must be a number above 0"),
        ({"exclude": "bias"}, "`exclude` must be a list of names. Received: exclude='bias'"),
    ],
)
def test_numbers_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        LARS(**options)
