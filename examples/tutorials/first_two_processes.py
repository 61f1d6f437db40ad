# %% [markdown]
# # Your first two processes
#
# A script that trains as one process, and what makes it train as two: three lines. At the end both have the same
# learning curve, drawn into one picture.
#
# The data are 1,440 handwritten digits of 8 by 8 pixels, which scikit-learn brings along (`pip install
# scikit-learn matplotlib`).

# %%
import keras
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import easyscale

digits = load_digits()
x = digits.data[:1440].astype("float32") / 16
y = digits.target[:1440]

# %% [markdown]
# ## Three lines
#
# The function below is what a script would be. It differs from one for a single process in the three lines that have
# a comment:
#
# 1. `shard` takes this worker's part of the data. Samples are dealt out like cards: worker 0 of two has the samples
#    0, 2, 4, ..., worker 1 has 1, 3, 5, ...
# 2. `local_batch(240)` is this worker's part of a batch of 240: all 240 with one worker, 120 with two.
# 3. `Distribute` makes one training of all: it averages gradients in each step, and merges metrics in each epoch.
#
# `shuffle=False` is for the comparison at the end. With shuffling each worker would shuffle its own part: as good a
# shuffle, but not the same one.


# %%
def train(epochs):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(3e-3), loss, metrics=["accuracy"])

    own_x, own_y = easyscale.shard(x, y)  # 1
    history = model.fit(
        own_x,
        own_y,
        batch_size=easyscale.local_batch(240),  # 2
        epochs=epochs,
        shuffle=False,
        verbose=0,
        callbacks=[easyscale.callbacks.Distribute()],  # 3
    )
    return history.history["loss"], model.get_weights(), easyscale.size()


# %% [markdown]
# ## One process, then two
#
# `easyscale.run` starts processes, calls the function on each, and returns what the first of them returns. In a
# script file you would call `train` at the end instead, and start the file on the command line:
#
# ```text
# python train.py
# easyscale launch -n 2 train.py
# ```
#
# Both are the same thing: `run` starts `easyscale launch` for you, which a notebook needs.

# %%
losses_of_one, weights_of_one, one = easyscale.run(train, 12, n=1)
losses_of_two, weights_of_two, two = easyscale.run(train, 12, n=2)

for size, losses in ((one, losses_of_one), (two, losses_of_two)):
    print(f"workers: {size}, loss {losses[0]:.3f} -> {losses[-1]:.3f}")

# %% [markdown]
# ```output
# workers: 1, loss 2.285 -> 0.575
# workers: 2, loss 2.285 -> 0.575
# ```
#
# Two processes, each on half of every batch, took the steps of one. That is not about this model: `P` workers on a
# batch of `G` samples take the steps of one process on `G`, to rounding. How far are the weights apart?

# %%
pairs = zip(weights_of_one, weights_of_two, strict=True)
difference = max(float(np.abs(one - two).max()) for one, two in pairs)
print(f"largest difference of a weight: {difference:.0e}")

# %% [markdown]
# ```output
# largest difference of a weight: 1e-07
# ```
#
# It is not zero, because sums of floating-point numbers depend on their order: two processes add gradients in another
# order than one. [What is the same](../../docs/equivalence.md) says how large it may be, and what is random by
# design.

# %%
figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
epochs = np.arange(1, len(losses_of_one) + 1)
axes.plot(epochs, losses_of_one, color="#3f51b5", linewidth=2, label="1 process")
axes.plot(epochs, losses_of_two, "o", color="#b3541e", markersize=7, fillstyle="none", label="2 processes")
axes.set(xlabel="epoch", ylabel="loss", title="The same steps, by one process and by two")
axes.legend()
figure.savefig("first_two_processes.svg")

# %% [markdown]
# ## Where to go
#
# - Another exchange: `Distribute("tree")`, or `easyscale launch --exchange tree`.
#   [Which exchange, watched](which_exchange.py) shows what they do.
# - Is it faster? Not this model: a step of a thousandth of a second has little to divide. `make demo` trains a conv
#   net, and `easyscale bench fit` measures your machine.
# - Batches of 240 stay 240, however many workers there are. To have them grow:
#   [large batches](../../docs/large_batch.md).
