# %% [markdown]
# # A model too large for one: bring the data to the weights
#
# Data parallelism has the whole model on each worker, and gradients of all weights travel in each step. If a model
# has many weights and few activations, the other way is shorter: a weight stays where it is, and activations come to
# it. Here a wide model trains in three ways on two processes, and we count what travels.

# %%
import keras
import matplotlib.pyplot as plt
import numpy as np

import easyscale
from easyscale.parallel import Pipeline, Split

BATCH = 64
STEPS = 15  # in an epoch

# %% [markdown]
# ## Three ways
#
# - By data: each worker has half of every batch, and the gradients of all weights are summed up.
# - `Pipeline(stages=2)`: the first process has the first layers, the second the rest. Four micro-batches go through
#   both.
# - `Split({"wide.*": "columns"})`: each process has half of the columns of the wide layers. All samples come to both.
#
# The model is built and compiled as ever. `model_parallel` is an argument of `Distribute`, which is made before
# `shard` and `local_batch` are called: they ask it how many workers there are.


# %%
class Sent(keras.callbacks.Callback):
    """How many bytes this process has sent in the steps of the last epoch."""

    def on_epoch_begin(self, epoch, logs=None):
        self.before = easyscale.communicator.get().sent.bytes

    def on_epoch_end(self, epoch, logs=None):
        self.bytes = easyscale.communicator.get().sent.bytes - self.before


def train(model_parallel):
    keras.utils.set_random_seed(1)
    generator = np.random.default_rng(0)
    x = generator.normal(size=(BATCH * STEPS, 64)).astype("float32")
    y = x[:, :8].sum(axis=1, keepdims=True)
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(1024, activation="relu", name="wide_1"),
            keras.layers.Dense(1024, activation="relu", name="wide_2"),
            keras.layers.Dense(1, name="last"),
        ]
    )
    model.compile(keras.optimizers.SGD(0.01), "mse")
    distribute, sent = easyscale.callbacks.Distribute("ring", model_parallel=model_parallel), Sent()
    x, y = easyscale.shard(x, y)
    batch = easyscale.local_batch(BATCH)
    losses = model.fit(x, y, batch_size=batch, epochs=3, shuffle=False, verbose=0, callbacks=[distribute, sent])
    most = max(easyscale.communicator.get().all_gather_object(sent.bytes))
    return losses.history["loss"], most / STEPS, easyscale.size()


def compare():
    ways = {
        "by data": None,
        "split": Split({"wide.*": "columns"}),
        "pipeline": Pipeline(stages=2, microbatches=4, cut=["wide_1"]),
    }
    return {name: train(way) for name, way in ways.items()}


# %%
found = easyscale.run(compare, n=2)
for name, (losses, sent, workers) in found.items():
    print(f"{name}: {workers} worker(s), {sent / 1e6:.2f} MB a step, loss {losses[-1]:.4f}")

# %% [markdown]
# ```output
# by data: 2 worker(s), 4.47 MB a step, loss 0.4832
# split: 2 worker(s), 0.54 MB a step, loss 0.4832
# pipeline: 1 worker(s), 0.54 MB a step, loss 0.4832
# ```
#
# The loss is the same in all three: they take the same steps. By data all of the gradients travel, 1.1 million
# numbers of four bytes. The two others send activations and their gradients, which grow with the batch and not with
# the weights.

# %%
figure, axes = plt.subplots(figsize=(7, 3), layout="constrained")
megabytes = [sent / 1e6 for _, sent, _ in found.values()]
axes.barh(list(found), megabytes, color=["#3f51b5", "#b3541e", "#2e7d5b"])
axes.bar_label(axes.containers[0], fmt="%.2f MB", padding=4)
axes.set(
    xlabel="MB that the busiest process sends in a step", title="1.1 million weights, a batch of 64", xlim=(0, 5.4)
)
axes.invert_yaxis()
figure.savefig("too_large.svg")

# %% [markdown]
# ## When it pays
#
# With `W` bytes of weights and `A` bytes of activations in and out of a batch, data parallelism moves about `2 W` for
# each worker and step, and model parallelism about `2 A`. `Split("auto")` looks at each layer, and splits those that
# send less so. A pipeline has idle time at its ends, `(S - 1) / (M + S - 1)` of it with `S` stages and `M`
# micro-batches, and each process has the weights of its stage only, if the model is built in the pipeline's
# `scope()`. With more processes there are several pipelines side by side.
#
# [Model parallelism](../../docs/model_parallel.md).
