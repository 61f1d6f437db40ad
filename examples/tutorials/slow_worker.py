# %% [markdown]
# # A parameter server and a slow worker
#
# One of three workers is three times slower than the others. Who waits for it? That depends on what a step is. Here a
# parameter server trains in three of its modes, for a few seconds each, and we look how fast each worker is.
#
# - `"sync"`: a step is the mean of all workers' gradients, as with every other exchange. All wait for the slowest.
# - `"bounded"`: each gradient is a step by itself; nobody may be more than so many steps ahead (`staleness`).
# - `"async"`: each gradient is a step by itself, and nobody waits.

# %%
import time

import matplotlib.pyplot as plt
import numpy as np

import easyscale
from easyscale.exchange import ParameterServer

SECONDS = 3.0  # of training in each mode
PACE = 0.05  # seconds that a step takes at least, so that the workers do not compete for this machine's cores
SLOW = 3  # the last worker takes so many times as long

# %% [markdown]
# ## The training
#
# On each rank the function trains once in each mode. `ParameterServer(mode)` is the only line that chooses the mode.
# A callback slows the steps down, the last worker's most, notes when they end, and has the chief end training when
# the time is over.
#
# Behind `fit()` all ranks have the weights that the server has, and the server itself as well: the code there runs
# everywhere.


# %%
def compare():
    import keras
    import tensorflow as tf

    class Watch(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.pace = PACE * (SLOW if easyscale.rank() == easyscale.size() - 1 else 1)
            self.ends = []  # of steps, in seconds

        def on_train_batch_begin(self, batch, logs=None):
            self.step_begun = time.perf_counter()

        def on_train_batch_end(self, batch, logs=None):
            now = time.perf_counter()
            self.ends.append(now)
            if easyscale.is_chief() and now - self.ends[0] > SECONDS:
                self.model.stop_training = True
            time.sleep(max(0.0, self.pace - (now - self.step_begun)))

        def steps_per_second(self):
            return 1 / float(np.median(np.diff(self.ends))) if len(self.ends) > 1 else 0.0  # a server makes none

    def train(exchange):
        keras.utils.set_random_seed(1)
        x = np.random.default_rng(0).normal(size=(1200, 16)).astype("float32")
        y = x.sum(axis=1, keepdims=True)
        model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.01), "mse")
        data = tf.data.Dataset.from_tensor_slices(easyscale.shard(x, y)).repeat().batch(16)
        watch = Watch()
        callbacks = [easyscale.callbacks.Distribute(exchange), watch]
        history = model.fit(data, steps_per_epoch=10_000, shuffle=False, verbose=0, callbacks=callbacks).history
        staleness = history.get("staleness", [0.0])[0]
        speeds = easyscale.communicator.get().all_gather_object(watch.steps_per_second())  # of every rank
        return speeds[: easyscale.size()], staleness  # the server is the last one

    modes = {
        "sync": ParameterServer("sync"),
        "bounded": ParameterServer("bounded", staleness=4),
        "async": ParameterServer("async"),
    }
    return {name: train(exchange) for name, exchange in modes.items()}


# %% [markdown]
# Three workers and one server, which trains on no data: four processes. On the command line that would be `easyscale
# launch -n 3 --servers 1 train.py`.

# %%
found = easyscale.run(compare, n=3, servers=1)
for name, (speeds, staleness) in found.items():
    steps = ", ".join(f"{speed:.0f}" for speed in speeds)
    print(f"{name}: the workers make {steps} steps a second; staleness {staleness:.1f}")

# %% [markdown]
# ```output
# sync: the workers make 7, 7, 7 steps a second; staleness 0.0
# bounded: the workers make 7, 7, 7 steps a second; staleness 0.8
# async: the workers make 19, 19, 7 steps a second; staleness 1.1
# ```
#
# In `"sync"` the two fast workers are as slow as the third. In `"bounded"` they may be four steps ahead, and then
# wait as well: a bound helps where workers differ now and then, not where one is always slow. In `"async"` nobody
# waits.

# %%
figure, axes = plt.subplots(figsize=(7, 3.8), layout="constrained")
for worker, color in enumerate(["#3f51b5", "#7986cb", "#b3541e"]):
    heights = [speeds[worker] for speeds, _ in found.values()]
    label = f"worker {worker}" + (f", {SLOW} times slower" if worker == 2 else "")
    axes.bar(np.arange(len(found)) + 0.27 * (worker - 1), heights, 0.25, color=color, label=label)
axes.set(xticks=range(len(found)), xticklabels=list(found), ylabel="steps a second", title="How fast each worker is")
axes.legend()
figure.savefig("slow_worker.svg")

# %% [markdown]
# ## What it costs
#
# Not waiting is not free. A gradient that comes late was made from weights that others have changed meanwhile: its
# *staleness* is how many steps the others have made since. The history has it for each epoch. And in `"bounded"` and
# `"async"` each worker's gradient is a step of its own, from a third of the samples: choose the learning rate for the
# batch of one worker.
#
# So take `"sync"`, or any other exchange, where results must be those of one process; `"async"` where workers differ
# much. [Parameter servers](../../docs/parameter_server.md) has what was measured of accuracy, and what else there is:
# backup workers, several steps between two messages, corrections for late gradients.
