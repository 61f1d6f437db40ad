"""`Distribute` on whatever Keras can train, in one process: what a `fit()` did without it, it does with it."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from easyscale.callbacks import Distribute

# Keras 3.16 has another name for it.
TensorFlowTrainer = next(
    kind for kind in keras.Model.__mro__ if kind.__module__ == "keras.src.backend.tensorflow.trainer"
)

X = np.linspace(-1, 1, 48, dtype="float32").reshape(12, 4)
Y = X[:, :3] - 0.5


class TrainerOnly(TensorFlowTrainer, keras.layers.Dense):
    """A layer that is trained by itself: it has `fit()`, and neither `save()` nor `layers`."""

    def __init__(self):
        keras.layers.Dense.__init__(self, 3, use_bias=False, kernel_initializer="ones")
        TensorFlowTrainer.__init__(self)


def test_a_trainer_that_is_no_model_trains_as_without_distribute():
    results = []
    for callbacks in ([], [Distribute()]):
        model = TrainerOnly()
        model.compile("adam", "mse", metrics=["mae"])
        history = model.fit(X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0, callbacks=callbacks).history
        results.append((history, model.evaluate(X, Y, verbose=0, callbacks=callbacks), model.get_weights()))

    (history, evaluated, weights), (with_history, with_evaluated, with_weights) = results
    assert list(with_history) == list(history) == ["loss", "mae"]
    np.testing.assert_allclose(with_history["loss"], history["loss"], rtol=1e-6)
    np.testing.assert_allclose(with_evaluated, evaluated, rtol=1e-6)
    np.testing.assert_allclose(with_weights[0], weights[0], atol=1e-6)


def test_a_model_in_a_strategy_of_ones_own_trains_as_without_distribute():
    losses = []
    for callbacks in ([], [Distribute()]):
        with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, kernel_initializer="ones")])
            model.compile("adam", "mse")
        losses += model.fit(X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0, callbacks=callbacks).history["loss"]
    np.testing.assert_allclose(losses[2:], losses[:2], rtol=1e-6)


@pytest.mark.parametrize("scaled", [False, True])
def test_variables_of_the_optimizer_have_the_paths_of_stock_keras(scaled):
    paths = []
    for callbacks in ([], [Distribute()]):
        keras.backend.clear_session()
        optimizer = keras.optimizers.Adam(use_ema=True)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
        model.compile(keras.optimizers.LossScaleOptimizer(optimizer) if scaled else optimizer, "mse")
        model.fit(X, Y, verbose=0, callbacks=callbacks)
        paths.append([variable.path for variable in model.optimizer.variables])
    assert paths[1] == paths[0]
    assert len(paths[0]) == (12 if scaled else 8)  # with four of the loss scaling
