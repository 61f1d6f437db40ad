"""The ways to set the samples of a step: a number that workers cannot divide, steps, Keras's default."""

import sys

import keras
import numpy as np

folder = sys.argv[1]
x = np.arange(203, dtype="float32")[:, None] / 203
y = np.full_like(x, 0.3)
weights = np.random.default_rng(0).uniform(0, 2, 203)
results = {}


def fit(name, *data, **options):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile(keras.optimizers.SGD(0.1), "mae", weighted_metrics=["mse"])
    history = model.fit(*data, **{"shuffle": False, "epochs": 2, "verbose": 0, **options})
    results[name] = [*(values for values in history.history.values())]
    results[f"{name}_weights"] = np.concatenate([value.ravel() for value in model.get_weights()])
    results[f"{name}_steps"] = int(model.optimizer.iterations)
    return model


fit("default", x, y)
fit("steps", x, y, steps_per_epoch=4)
fit("weighted_steps", x, y, steps_per_epoch=3, sample_weight=weights)
fit("a_part_in_each_epoch", x, y, steps_per_epoch=2, batch_size=31)
fit("odd_batches", x, y, batch_size=25)
fit("validation_steps", x, y, batch_size=20, validation_data=(x[:50], y[:50]), validation_steps=3)
fit("validation_batches", x, y, validation_data=(x[:51], y[:51]), validation_steps=2, validation_batch_size=11)
fit("validation_split", x, y, validation_split=0.25, steps_per_epoch=5, validation_steps=2)
model = fit("class_weight", x, (x > 0.5).astype(int), batch_size=19, class_weight={0: 1.0, 1: 3.0})
unbuilt = keras.Sequential([keras.layers.Dense(1, kernel_initializer="ones")])
unbuilt.compile(keras.optimizers.SGD(0.1), "mae")
results["built_by_evaluate"] = unbuilt.evaluate(x, y, batch_size=50, verbose=0)
results["other_batches"] = unbuilt.fit(x, y, batch_size=20, shuffle=False, verbose=0).history["loss"]
results["batches_of_one"] = unbuilt.evaluate(((x[i : i + 1], y[i : i + 1]) for i in range(9)), steps=5, verbose=0)
for size in (None, 7, 1):
    results[f"evaluate_{size}"] = model.evaluate(x, y, steps=3, batch_size=size, verbose=0)
results["predict"] = model.predict(x, steps=3, verbose=0)
results["predict_a_part"] = model.predict(x, steps=3, batch_size=7, verbose=0)
np.savez(f"{folder}/result.npz", **results)
