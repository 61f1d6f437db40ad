"""A `fit()` by `easyscale.run`, from a process in which TensorFlow is in use, is that of one process."""

import sys

import cloudpickle
import keras
import numpy as np
import pytest

import easyscale

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a file of tests
X = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def _train():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse")
    x, y = easyscale.shard(X, Y)
    batch, callbacks = easyscale.local_batch(16), [easyscale.callbacks.Distribute()]
    history = model.fit(x, y, batch_size=batch, epochs=3, shuffle=False, verbose=0, callbacks=callbacks)
    return model, history.history, keras.config.backend(), keras.config.floatx()


@pytest.mark.full
def test_two_workers_train_the_model_of_this_process(monkeypatch):
    alone, history, backend, _ = _train()  # and TensorFlow is in use here
    monkeypatch.setenv("KERAS_BACKEND", "numpy")  # which came too late here, and must not reach workers
    model, history_of_all, backend_of_all, _ = easyscale.run(_train, n=2)
    assert backend_of_all == backend
    assert isinstance(model.optimizer, keras.optimizers.Adam)  # a stock model
    for weight, expected in zip(model.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(weight, expected, atol=1e-5)
    np.testing.assert_allclose(history_of_all["loss"], history["loss"], rtol=1e-5)
    np.testing.assert_allclose(model.predict(X, verbose=0), alone.predict(X, verbose=0), atol=1e-4)
