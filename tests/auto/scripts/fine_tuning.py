"""Several `fit`s of one model: first a new head on frozen layers, then all of it, from a saved base."""

import sys

import keras
import numpy as np
from sklearn.datasets import load_digits

folder = sys.argv[1]
keras.utils.set_random_seed(1)
digits = load_digits()
x, y = digits.data.astype("float32") / 16.0, digits.target

base = keras.Sequential(
    [keras.Input((64,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(16)], name="base"
)
pretrained = keras.Sequential([base, keras.layers.Dense(10)])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
pretrained.compile("adam", loss)
first = pretrained.fit(x[:640], y[:640], batch_size=64, epochs=2, shuffle=False, verbose=0)
base.save(f"{folder}/base.keras")

base = keras.models.load_model(f"{folder}/base.keras")
base.trainable = False
inputs = keras.Input((64,))
outputs = keras.layers.Dense(1)(base(inputs, training=False))
model = keras.Model(inputs, outputs)
loss = keras.losses.BinaryCrossentropy(from_logits=True)
target = (y % 2)[:, None].astype("float32")
model.compile(keras.optimizers.Adam(0.01), loss, metrics=[keras.metrics.BinaryAccuracy(name="accuracy")])
weights = np.linspace(0.5, 1.5, 1000).astype("float32")
frozen = model.fit(x[:1000], target[:1000], sample_weight=weights, epochs=2, shuffle=False, verbose=0)

base.trainable = True
model.compile(keras.optimizers.Adam(1e-3), loss, metrics=[keras.metrics.BinaryAccuracy(name="accuracy")])
tuned = model.fit(
    x[:1000], target[:1000], epochs=4, initial_epoch=2, shuffle=False, verbose=0,
    validation_data=(x[1000:], target[1000:]), validation_batch_size=100,
)  # fmt: skip
score = model.evaluate(x[1000:], target[1000:], verbose=0)
np.savez(
    f"{folder}/result.npz", *model.get_weights(), score=score, predictions=model.predict(x[1000:], verbose=0),
    first=first.history["loss"], frozen=frozen.history["loss"], **tuned.history,
)  # fmt: skip
