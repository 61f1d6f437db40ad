"""Data of other kinds than arrays and datasets: what becomes of them is printed."""

import os
import sys

import keras
import numpy as np

folder = sys.argv[1]
rng = np.random.default_rng(0)
x = rng.normal(size=(120, 3)).astype("float32")
y = x.sum(axis=1, keepdims=True)


def make():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def batches(x, y, times=2):
    for start in list(range(0, 120, 24)) * times:
        yield x[start : start + 24], y[start : start + 24]


# The same on all workers: divided.
generated = make()
generated.fit(batches(x, y), epochs=2, steps_per_epoch=5, validation_data=batches(x, y), validation_steps=5, verbose=0)

# Drawn by each worker for itself: each takes its part of its own.
own = np.random.default_rng(list(os.urandom(8))).normal(size=(120, 3)).astype("float32")
drawn = make()
drawn.fit(own, own.sum(axis=1, keepdims=True), batch_size=24, verbose=0)


# A structure, of fewer samples for validation than workers, and a callback that evaluates, predicts and saves.
class Looks(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.loss = self.model.evaluate({"a": x}, {"b": y}, verbose=0)
        self.rows = self.model.predict({"a": x[:50]}, verbose=0)
        self.model.save(f"{folder}/structure.keras")
        drawn.save(f"{folder}/another_model.keras")


keras.utils.set_random_seed(1)
inputs = {"a": keras.Input((3,), name="a")}
structure = keras.Model(inputs, {"b": keras.layers.Dense(1, name="b")(inputs["a"])})
structure.compile("sgd", {"b": "mse"})
looks = Looks()
history = structure.fit(
    {"a": x}, {"b": y}, batch_size=24, shuffle=False, validation_data=({"a": x[:1]}, {"b": y[:1]}), verbose=0,
    callbacks=[looks],
)  # fmt: skip

keras.saving.save_model(structure, f"{folder}/again.keras")
again = keras.models.load_model(f"{folder}/again.keras")
again_loss = again.evaluate({"a": x}, {"b": y}, verbose=0)

# What cannot be saved is an error that a script may catch.
try:
    structure.save(f"{folder}/structure.unknown")
    saved = True
except ValueError:
    saved = False

# Drawn without a seed, and still the same on all workers.
unseeded = np.random.default_rng().permutation(120)
permuted = make()
permuted.fit(x[unseeded], y[unseeded], batch_size=40, shuffle=False, verbose=0)

# Batches of an odd size for an evaluation, of whose means Keras takes the mean where there are several outputs.
several = keras.Model(inputs, {name: keras.layers.Dense(1, name=name)(inputs["a"]) for name in ("p", "q")})
several.compile("sgd", {"p": "mse", "q": "mae"})
both = {"p": y, "q": 2 * y}
odd = several.fit(
    {"a": x[:48]}, {name: one[:48] for name, one in both.items()}, batch_size=24, shuffle=False, verbose=0,
    validation_data=({"a": x}, both), validation_batch_size=7,
)  # fmt: skip
odd = [odd.history["val_p_loss"], *(several.evaluate({"a": x}, both, batch_size=size, verbose=0) for size in (9, 119))]

# A loop of the script's own.
looped = make()
for batch in batches(x, y, 1):
    looped.train_on_batch(*batch)

np.savez(
    f"{folder}/result.npz", *generated.get_weights(), *looped.get_weights(), *structure.get_weights(),
    looked=looks.loss, rows=looks.rows["b"], predicted=generated.predict(x[:, :3], verbose=0),
    saved=saved, again=again_loss, few=generated.predict(x[:1], verbose=0),
    of_generator=generated.predict(((part,) for part, _ in batches(x, y, 1)), verbose=0),
    losses=history.history["loss"], val=history.history["val_loss"],
    odd=np.hstack(odd),
    evaluated=generated.evaluate(batches(x, y, 1), steps=5, verbose=0),
)  # fmt: skip
