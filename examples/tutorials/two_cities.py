# %% [markdown]
# # Two cities: a slow line between the workers
#
# Two workers, with a line of 20 Mbit/s and 5 ms between them, as between two cities. Gradients of each step take
# longer than the step. What helps: fewer bytes, or fewer exchanges. Here four ways train the same model, on this
# machine, on which `--bandwidth` and `--latency` make the line.

# %%
import time

import keras
import matplotlib.pyplot as plt
from sklearn.datasets import load_digits

import easyscale

digits = load_digits()
x, y = digits.data[:1408].astype("float32") / 16, digits.target[:1408]

# %% [markdown]
# ## Four ways
#
# - As it is: each step sums up the gradients of both workers.
# - `compression="int8"`: a byte for each number instead of four.
# - `LocalSGD(every=11)`: each worker steps alone eleven times, then they take the mean of their weights.
# - `DiLoCo(every=22)`: after 22 steps an outer optimizer applies the mean of what they have changed.
#
# The first takes the steps of one process. The second does to the form's precision. The other two are another
# training: workers drift apart between two rounds.


# %%
class Watch(keras.callbacks.Callback):
    """When each epoch has ended, and how many bytes this worker has sent in a step."""

    def __init__(self):
        super().__init__()
        self.seconds, self.begun, self.sent = [], None, None

    def on_train_batch_end(self, batch, logs=None):
        if self.begun is None:  # behind the first step, which traces
            self.begun, self.sent = time.perf_counter(), easyscale.communicator.get().sent.bytes

    def on_epoch_end(self, epoch, logs=None):
        self.seconds.append(time.perf_counter() - self.begun)

    def on_train_end(self, logs=None):
        self.sent = easyscale.communicator.get().sent.bytes - self.sent


def train(options):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(256, activation="relu"), keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss)
    own_x, own_y = easyscale.shard(x, y)
    watch = Watch()
    callbacks = [easyscale.callbacks.Distribute("ring", **options), watch]
    batch = easyscale.local_batch(64)
    losses = model.fit(own_x, own_y, batch_size=batch, epochs=4, verbose=0, callbacks=callbacks).history["loss"]
    return watch.seconds, losses, watch.sent / (4 * 22 - 1)


def compare():
    ways = {
        "as it is": {},
        "int8": {"compression": "int8"},
        "LocalSGD(11)": {"update": easyscale.update.LocalSGD(every=11)},
        "DiLoCo(22)": {"update": easyscale.update.DiLoCo(every=22)},
    }
    return {name: train(options) for name, options in ways.items()}


# %%
found = easyscale.run(compare, n=2, bandwidth="20Mbit", latency="5ms")
for name, (seconds, losses, sent) in found.items():
    print(f"{name}: {seconds[-1]:.1f} s, {sent / 1000:.1f} kB a step, loss {losses[-1]:.2f}")

# %% [markdown]
# ```output
# as it is: 9.4 s, 77.1 kB a step, loss 0.09
# int8: 3.7 s, 19.5 kB a step, loss 0.09
# LocalSGD(11): 1.5 s, 7.1 kB a step, loss 0.09
# DiLoCo(22): 0.8 s, 3.6 kB a step, loss 0.17
# ```

# %%
figure, axes = plt.subplots(figsize=(7.5, 4), layout="constrained")
colors = ["#3f51b5", "#2e7d5b", "#b3541e", "#8e3b8e"]
for (name, (seconds, losses, _)), color in zip(found.items(), colors, strict=True):
    axes.plot(seconds, losses, "o-", color=color, label=name)
axes.set(xlabel="seconds", ylabel="loss", yscale="log", title="Four epochs over a line of 20 Mbit/s and 5 ms")
axes.legend()
figure.savefig("two_cities.svg")

# %% [markdown]
# ## Which to take
#
# - `compression` keeps the training what it is, nearly: take it first. `"auto"` measures which form pays on your line.
# - Where even that is too slow, let workers step alone. How many steps they may depends on the model: compare the loss
#   after as many *samples*, not after as much time.
#
# [Slow networks](../../docs/slow_networks.md) says what each costs, and which to choose. To try it with a script of
# your own:
#
# ```text
# easyscale launch -n 2 --bandwidth 20Mbit --latency 5ms --compression int8 train.py
# ```
