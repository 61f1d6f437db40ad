"""A script that renames and removes the files that it has saved, so that a file of a name is whole at any time."""

import os
import shutil
import sys
from pathlib import Path

import h5py
import keras
import numpy as np

folder = Path(sys.argv[1], "out")
folder.mkdir()
sums = []


class KeepLast(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.save(folder / "part.keras")
        os.replace(folder / "part.keras", folder / f"epoch{epoch}.keras")
        loaded = keras.models.load_model(folder / f"epoch{epoch}.keras")
        sums.append(sum(weight.sum() for weight in loaded.get_weights()))
        if epoch:
            os.remove(folder / f"epoch{epoch - 1}.keras")
            sums.append((folder / f"epoch{epoch - 1}.keras").exists())


keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((30,)), keras.layers.Dense(1)])
model.compile("adam", "mse")
x = np.random.default_rng(0).normal(size=(64, 30)).astype("float32")
checkpoint = keras.callbacks.ModelCheckpoint(folder / "best.keras", monitor="loss", save_best_only=True)
model.fit(x, x[:, :1], epochs=3, shuffle=False, verbose=0, callbacks=[KeepLast(), checkpoint])
(folder / "kept").mkdir()
os.rename(folder / "epoch2.keras", folder / "last.keras")
shutil.move(folder / "best.keras", folder / "kept")
for number in range(3):
    model.save(folder / "a.keras")
    (folder / "a.keras").rename(folder / "b.keras")
    keras.models.load_model(folder / "b.keras")
    os.replace(folder / "b.keras", folder / "model.keras")
    np.save(folder / "part.npy", x)
    os.replace(folder / "part.npy", folder / f"{number}.npy")
model.save_weights(folder / "a.weights.h5")
os.rename(folder / "a.weights.h5", folder / "model.weights.h5")
model.load_weights(folder / "model.weights.h5")
with h5py.File(folder / "a.h5", "w") as file:
    file["kernel"] = model.get_weights()[0]
os.rename(folder / "a.h5", folder / "kernel.h5")
with h5py.File(folder / "kernel.h5") as file:
    sums.append(file["kernel"][()].sum())
try:
    os.rename(folder / "a.keras", folder / "c.keras")
except FileNotFoundError:
    sums.append(-1)
(folder / "old").mkdir()
model.save(folder / "old" / "model.keras")
shutil.rmtree(folder / "old")
os.rename(folder / "kept", folder / "best")
names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.*"))
loaded = [keras.models.load_model(folder / name).get_weights() for name in names if name.endswith(".keras")]
names = np.frombuffer(" ".join(names).encode(), np.uint8)
np.savez(f"{sys.argv[1]}/result.npz", *[weight for weights in loaded for weight in weights], sums=sums, names=names)
