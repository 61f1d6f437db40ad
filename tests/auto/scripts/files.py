"""A script that writes files itself: a callback saves and loads the model, HDF5 files, folders."""

import os
import sys
import tempfile
import time

import h5py
import keras
import numpy as np
import tensorflow as tf

folder = sys.argv[1]
os.mkdir(f"{folder}/out")
os.makedirs(f"{folder}/deep/er", exist_ok=True)
gaps, sizes, names = [], [], []
stamped = f"{folder}/run-{time.time_ns()}"  # another one on each rank


class Convert(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.save(f"{folder}/out/callback.keras")
        loaded = keras.models.load_model(f"{folder}/out/callback.keras")
        gaps.append(
            max(np.abs(a - b).max() for a, b in zip(loaded.get_weights(), self.model.get_weights(), strict=True))
        )
        os.makedirs(f"{stamped}/{epoch}")
        self.model.save(f"{stamped}/{epoch}/callback.keras")
        keras.models.load_model(f"{stamped}/{epoch}/callback.keras")
        self.model.save_weights(f"{folder}/out/epoch.weights.h5")
        sizes.append(os.path.getsize(f"{folder}/out/epoch.weights.h5") > 1000)
        with h5py.File(f"{folder}/out/log.h5", "a") as file:
            file[f"epoch {epoch}"] = [epoch]
        with h5py.File(f"{folder}/out/log.h5") as file:
            names.append(len(file))


keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((30,)), keras.layers.Dense(200), keras.layers.Dense(1)])
model.compile("adam", "mse")
x = np.random.default_rng(0).normal(size=(64, 30)).astype("float32")
checkpoint = keras.callbacks.ModelCheckpoint(f"{folder}/out/callback.keras")
best = keras.callbacks.ModelCheckpoint(f"{stamped}/best-{{epoch}}.keras")
log = keras.callbacks.CSVLogger(f"{folder}/{time.time_ns()}.csv")
model.fit(x, x[:, :1], epochs=2, shuffle=False, verbose=0, callbacks=[Convert(), checkpoint, best, log])
in_run = [keras.models.load_model(f"{stamped}/{name}.keras").get_weights()[0] for name in ("best-1", "best-2")]
with open(log.filename) as file:
    lines = [float(line.split(",")[1]) for line in file.readlines()[1:]]
with h5py.File(f"{folder}/out/weights.h5", "w") as file:
    file["kernel"] = model.get_weights()[0]
loaded = []
with tempfile.TemporaryDirectory() as own:  # another one on each rank
    names_of_files = [f"{own}/model.keras", f"{folder}/out/{time.time_ns()}.keras", f"{own}/model.weights.h5"]
    keras.models.save_model(model=model, filepath=names_of_files[0])
    model.save(names_of_files[1])
    model.save_weights(names_of_files[2])
    loaded += [keras.models.load_model(name).get_weights()[0] for name in names_of_files[:2]]
    model.load_weights(names_of_files[2])
copy = keras.Sequential([keras.Input((30,)), keras.layers.Dense(1)])
copy.compile(type(model.optimizer).from_config(model.optimizer.get_config()), "mse")
copy.fit(x, x[:, :1], batch_size=8, epochs=2, shuffle=False, verbose=0)
cached = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(8).cache(f"{folder}/out/cached")
copy.fit(cached, epochs=2, verbose=0)
space = keras.utils.FeatureSpace({"first": "float"}, output_mode="concat")
space.adapt(tf.data.Dataset.from_tensor_slices({"first": x[:, 0]}))
space.save(f"{folder}/out/space.keras")
loaded.append(keras.models.load_model(f"{folder}/out/space.keras")({"first": x[:4, 0]}))
try:
    os.mkdir(f"{folder}/out")
    raised = 0
except FileExistsError:
    raised = 1
weights = [*model.get_weights(), *copy.get_weights(), *loaded, *in_run, lines]
np.savez(f"{folder}/result.npz", *weights, gaps=gaps, sizes=sizes, names=names, raised=raised)
