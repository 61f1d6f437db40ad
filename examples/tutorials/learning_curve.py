# %% [markdown]
# # From one process to many, with the same learning curve
#
# More processes can do two things: the same steps in less time, or larger steps. The first changes nothing of how a
# model learns. The second does, and needs another learning rate. Here both are shown on handwritten digits, with one
# process and with four.

# %%
import keras
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import easyscale

digits = load_digits()
x, y = digits.data.astype("float32") / 16, digits.target
x_train, y_train, x_test, y_test = x[:1408], y[:1408], x[1408:], y[1408:]

BATCH = 32  # what the rate below is good for
RATE = 0.01
EPOCHS = 8

# %% [markdown]
# ## One function, four ways
#
# The function trains once with each of these:
#
# | | batch of all workers | learning rate |
# |---|---|---|
# | the same batch | 32, of which four workers have 8 each | 0.01 |
# | a larger batch | 256: each of four workers has 64 | 0.01 |
# | with the rate scaled | 256 | 0.08: eight times the batch, eight times the rate (Goyal et al., 2017) |
# | and warmed up | 256 | from 0.01 to 0.08 in the first two epochs |
#
# `scaled_lr` computes the rate, and `LearningRateWarmup` raises it a little with every batch.
# `easyscale.optimizers.SGD` is Keras's, but for its momentum, which does not remember steps that were made at smaller
# rates.


# %%
class TestLoss(keras.callbacks.Callback):
    """The loss on data that no worker trains on, after each epoch."""

    def __init__(self):
        super().__init__()
        self.losses = []

    def on_epoch_end(self, epoch, logs=None):
        if easyscale.is_chief():
            self.losses.append(self.model.evaluate(x_test, y_test, verbose=0))


def train(batch, rate, warmup):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(easyscale.optimizers.SGD(rate, momentum=0.9), loss)
    own_x, own_y = easyscale.shard(x_train, y_train)
    watch = TestLoss()
    callbacks = [easyscale.callbacks.Distribute(), watch]
    if warmup:
        callbacks.append(easyscale.callbacks.LearningRateWarmup(epochs=warmup, start=RATE))
    local = easyscale.local_batch(batch)
    model.fit(own_x, own_y, batch_size=local, epochs=EPOCHS, shuffle=False, verbose=0, callbacks=callbacks)
    return watch.losses


def compare(ways):
    return [train(*way) for way in ways]


# %%
large = 8 * BATCH
scaled = easyscale.scaled_lr(RATE, base_batch=BATCH, batch=large)
ways = {
    "4 processes, batch 32": (BATCH, RATE, 0),
    "4 processes, batch 256": (large, RATE, 0),
    "... and the rate scaled": (large, scaled, 0),
    "... and warmed up": (large, scaled, 2),
}
one = {"1 process, batch 32": (BATCH, RATE, 0)}
curves = dict(zip(one, easyscale.run(compare, list(one.values()), n=1), strict=True))
curves |= zip(ways, easyscale.run(compare, list(ways.values()), n=4), strict=True)

for name, losses in curves.items():
    print(f"{name}: test loss {losses[-1]:.3f}")
same = np.abs(np.subtract(curves["1 process, batch 32"], curves["4 processes, batch 32"])).max()
print("one process and four on the same batch learn the same:", same < 1e-3)

# %% [markdown]
# ```output
# 1 process, batch 32: test loss 0.445
# 4 processes, batch 32: test loss 0.445
# 4 processes, batch 256: test loss 1.581
# ... and the rate scaled: test loss 0.461
# ... and warmed up: test loss 0.473
# one process and four on the same batch learn the same: True
# ```

# %%
figure, axes = plt.subplots(figsize=(7.5, 4), layout="constrained")
styles = [("#3f51b5", "-", 2), ("#b3541e", "o", 7), ("#c3ccdb", "-", 2), ("#8e3b8e", "--", 2), ("#2e7d5b", "-", 2)]
for (name, losses), (color, style, size) in zip(curves.items(), styles, strict=True):
    epochs = np.arange(1, EPOCHS + 1)
    axes.plot(epochs, losses, style, color=color, label=name, linewidth=size, markersize=size, fillstyle="none")
axes.set(xlabel="epoch", ylabel="test loss", title="The same batch: the same curve")
axes.legend()
figure.savefig("learning_curve.svg")

# %% [markdown]
# With the same batch the points of four processes lie on the line of one: use `local_batch`, and nothing else has to
# be thought of.
#
# With a batch eight times as large there are an eighth of the steps in an epoch, so at the old rate the model learns
# more slowly. The scaled rate makes up for it. The warm-up is for the first steps, in which a large rate may lead
# anywhere: this small model does without, deeper ones do not.
#
# Much larger batches need `easyscale.optimizers.LARS`, or Keras's `Lamb`: [large batches](../../docs/large_batch.md)
# has the accuracy of each way, measured.
