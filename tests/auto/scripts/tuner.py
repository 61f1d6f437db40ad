"""A search over hyperparameters, one model after the other, as tuners do; the best one is trained again."""

import itertools
import sys

import keras
import numpy as np

folder = sys.argv[1]


def build_model(units, learning_rate):
    model = keras.Sequential()
    model.add(keras.layers.Dense(units, activation="relu"))
    model.add(keras.layers.Dense(1))
    model.compile(keras.optimizers.RMSprop(learning_rate), "mse", metrics=["mae"])
    return model


rng = np.random.default_rng(1)
x = rng.normal(size=(500, 8)).astype("float32")
y = np.abs(x).sum(axis=1)

results, histories = {}, []
for units, learning_rate in itertools.product([4, 16], [1e-3, 1e-2]):
    keras.backend.clear_session()
    keras.utils.set_random_seed(2)
    model = build_model(units, learning_rate)
    history = model.fit(
        x[:400], y[:400], batch_size=40, epochs=2, validation_data=(x[400:], y[400:]), shuffle=False, verbose=0
    )
    histories.append(history.history["val_loss"])
    results[units, learning_rate] = model.evaluate(x[400:], y[400:], verbose=0)[1]
    print(f"{units} units, {learning_rate}: {results[units, learning_rate]:.4f}")

best = min(results, key=results.get)
print("best:", best)
keras.utils.set_random_seed(2)
model = build_model(*best)
history = model.fit(x, y, batch_size=50, epochs=3, shuffle=False, verbose=0)
np.savez(
    f"{folder}/result.npz", *model.get_weights(), best=best, results=list(results.values()), histories=histories,
    predictions=model.predict(x, batch_size=64, verbose=0), **history.history,
)  # fmt: skip
