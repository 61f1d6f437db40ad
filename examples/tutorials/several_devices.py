# %% [markdown]
# # Several devices: in one process, in several, and both
#
# A replica of the model can be a process of its own (*between-graph*), or one of several devices that one process
# drives (*in-graph*), or both. The script is the same, and so is the learning curve. Here the devices are logical
# ones of the CPU, so that it works on any machine; with GPUs it is the same.

# %%
import keras
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import easyscale

digits = load_digits()
x, y = digits.data[:1440].astype("float32") / 16, digits.target[:1440]

# %% [markdown]
# ## One line more
#
# Around building and compiling the model stands `with easyscale.scope():`. In-graph it is the scope of a
# `MirroredStrategy` over this process's devices; between processes it does nothing, so it may stay.


# %%
def train():
    keras.utils.set_random_seed(1)
    with easyscale.scope():
        model = keras.Sequential(
            [keras.Input((64,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(10)]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(3e-3), loss)
    own_x, own_y = easyscale.shard(x, y)
    batch = easyscale.local_batch(240)  # of this process: what its devices have together
    callbacks = [easyscale.callbacks.Distribute()]
    history = model.fit(own_x, own_y, batch_size=batch, epochs=8, shuffle=False, verbose=0, callbacks=callbacks)
    processes = easyscale.communicator.get().size
    return history.history["loss"], processes, easyscale.size(), batch


# %% [markdown]
# ## Four ways to start it
#
# On the command line:
#
# ```text
# python train.py
# easyscale launch -n 2 train.py
# easyscale launch -n 2 --replication in_graph train.py
# easyscale launch -n 2 --devices 2 train.py
# ```

# %%
ways = {
    "one process": {"n": 1},
    "two processes": {"n": 2},
    "one process, two devices": {"n": 2, "replication": "in_graph"},
    "two processes, two devices each": {"n": 2, "devices": 2},
}
curves = {}
for name, options in ways.items():
    curves[name], processes, workers, batch = easyscale.run(train, **options)
    print(f"{name}: {processes} process(es), {workers} worker(s), batch_size={batch} in each process")

first, *others = curves.values()
print("the same curve, to rounding:", all(np.allclose(first, other, rtol=1e-4) for other in others))

# %% [markdown]
# ```output
# one process: 1 process(es), 1 worker(s), batch_size=240 in each process
# two processes: 2 process(es), 2 worker(s), batch_size=120 in each process
# one process, two devices: 1 process(es), 2 worker(s), batch_size=240 in each process
# two processes, two devices each: 2 process(es), 4 worker(s), batch_size=120 in each process
# the same curve, to rounding: True
# ```

# %%
figure, axes = plt.subplots(figsize=(7, 3.8), layout="constrained")
styles = [("-", "#3f51b5", 2), ("o", "#b3541e", 6), ("s", "#2e7d5b", 9), ("D", "#8e3b8e", 12)]
for (name, losses), (style, color, size) in zip(curves.items(), styles, strict=True):
    axes.plot(range(1, 9), losses, style, color=color, label=name, markersize=size, fillstyle="none", linewidth=2)
axes.set(xlabel="epoch", ylabel="loss", title="Four ways to be several, one learning curve")
axes.legend()
figure.savefig("several_devices.svg")

# %% [markdown]
# ## Which, when
#
# One process feeds all of its devices: it reads, prepares and divides every batch. Where that takes as long as a
# step, a process for each device is faster. On CPUs take processes; in-graph is for the GPUs of one machine, or where
# a single process is what is possible. [Replication](../../docs/replication.md) says what happens in a step, and what
# was measured.
