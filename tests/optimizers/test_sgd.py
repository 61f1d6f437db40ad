"""SGD with momentum correction, against Goyal et al. written down in NumPy, and against Keras's."""

import keras
import numpy as np
import pytest

import easyscale

GRADIENTS = np.random.default_rng(0).normal(size=(8, 3))


def _train(optimizer, rates):
    variable = keras.Variable(np.zeros(3), dtype="float64")
    for rate, gradient in zip(rates, GRADIENTS, strict=True):
        optimizer.learning_rate = rate
        optimizer.apply([keras.ops.convert_to_tensor(gradient, "float64")], [variable])
    return keras.ops.convert_to_numpy(variable)


def test_the_velocity_is_scaled_by_the_change_of_the_rate():
    rates = [0.1, 0.2, 0.4, 0.8, 0.8, 0.3, 0.3, 0.1]
    w, velocity, before = np.zeros(3), np.zeros(3), rates[0]
    for rate, gradient in zip(rates, GRADIENTS, strict=True):
        velocity = 0.9 * rate / before * velocity + rate * gradient
        w, before = w - velocity, rate
    np.testing.assert_allclose(_train(easyscale.optimizers.SGD(0.1), rates), w, atol=1e-6)
    assert abs(_train(keras.optimizers.SGD(0.1, momentum=0.9), rates) - w).max() > 0.1


@pytest.mark.parametrize(
    "options", [{"momentum": 0.0}, {}, {"nesterov": True}, {"weight_decay": 0.1}, {"clipnorm": 0.5}]
)
def test_at_one_rate_it_is_keras_sgd(options):
    ours = _train(easyscale.optimizers.SGD(0.1, **options), [0.1] * 8)
    expected = _train(keras.optimizers.SGD(0.1, **{"momentum": 0.9, **options}), [0.1] * 8)
    np.testing.assert_allclose(ours, expected, atol=1e-6)


def test_it_is_saved_and_loaded():
    optimizer = easyscale.optimizers.SGD(easyscale.optimizers.schedules.Warmup(0.3, 5), nesterov=True)
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert type(again) is easyscale.optimizers.SGD
    assert again.get_config() == optimizer.get_config()
