"""A script that writes files itself: a callback saves and loads the model, HDF5 files, folders."""

import os
import sys

import h5py
import keras
import numpy as np

folder = sys.argv[1]
os.mkdir(f"{folder}/out")
os.makedirs(f"{folder}/deep/er", exist_ok=True)
gaps, sizes, names = [], [], []


class Convert(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.save(f"{folder}/out/callback.keras")
        loaded = keras.models.load_model(f"{folder}/out/callback.keras")
        gaps.append(
            max(np.abs(a - b).max() for a, b in zip(loaded.get_weights(), self.model.get_weights(), strict=True))
        )
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
model.fit(x, x[:, :1], epochs=2, shuffle=False, verbose=0, callbacks=[Convert(), checkpoint])
with h5py.File(f"{folder}/out/weights.h5", "w") as file:
    file["kernel"] = model.get_weights()[0]
try:
    os.mkdir(f"{folder}/out")
    raised = 0
except FileExistsError:
    raised = 1
np.savez(f"{folder}/result.npz", *model.get_weights(), gaps=gaps, sizes=sizes, names=names, raised=raised)
