# %% [markdown]
# # When a worker dies
#
# Three workers train, and one of them is killed in the middle of it. With `--elastic` the other two go on: in the
# same `fit()`, without starting again, on all of the data. Here it is done on purpose, and we look at how long the
# others stood still.

# %%
import os
import signal
import time

import keras
import matplotlib.pyplot as plt
import numpy as np

import easyscale

# %% [markdown]
# ## A script that kills one of its workers
#
# `Kill` ends worker 1 by SIGKILL, as a machine that runs out of memory would. `Times` notes how long each step of the
# chief's takes. Nothing else differs from any other script: the other workers have all the state that is needed.


# %%
class Kill(keras.callbacks.Callback):
    def __init__(self, epoch, batch):
        super().__init__()
        self.at, self.is_victim = (epoch, batch), easyscale.rank() == 1

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if self.is_victim and (self.epoch, batch) == self.at:
            os.kill(os.getpid(), signal.SIGKILL)


class Times(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seconds = []

    def on_train_batch_begin(self, batch, logs=None):
        self.begun = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        self.seconds.append(time.perf_counter() - self.begun)


def train():
    keras.utils.set_random_seed(1)
    x = np.random.default_rng(0).normal(size=(2400, 16)).astype("float32")
    y = x.sum(axis=1, keepdims=True)
    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(3e-3), "mse")
    x, y = easyscale.shard(x, y)
    times = Times()
    callbacks = [easyscale.callbacks.Distribute(), Kill(epoch=2, batch=10), times]
    history = model.fit(x, y, batch_size=easyscale.local_batch(120), epochs=6, verbose=0, callbacks=callbacks).history
    return np.array(times.seconds), history["workers"], history["loss"]


# %% [markdown]
# On the command line that would be `easyscale launch -n 3 --elastic train.py`.

# %%
seconds, workers, losses = easyscale.run(train, n=3, elastic=True)
print("workers at the end of each epoch:", ", ".join(f"{number:.0f}" for number in workers))
print(f"loss of each epoch: {', '.join(f'{loss:.2f}' for loss in losses)}")
print(f"steps that the chief has made: {len(seconds)}")

# %% [markdown]
# ```output
# workers at the end of each epoch: 3, 3, 2, 2, 2, 2
# loss of each epoch: 12.27, 4.22, 0.42, 0.17, 0.10, 0.07
# steps that the chief has made: 120
# ```
#
# The launcher says whom it has lost, and how:
#
# ```text
# easyscale: rank 1 on node7 was killed by signal 9 (Killed); 2 of 3 workers are left
# ```
#
# The global batch stays 120: each of the two now has 60 of it. The loss goes on falling as it would have.

# %%
figure, axes = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
axes.semilogy(np.arange(20, len(seconds)), 1000 * seconds[20:], color="#3f51b5", linewidth=1)  # the first epoch traces
lost = 2 * 20 + 10 + 1  # the step behind that in which worker 1 was killed
axes.annotate(
    "worker 1 is gone",
    (lost, 1000 * seconds[lost]),
    (lost + 8, 700 * seconds[lost]),
    arrowprops={"arrowstyle": "->", "color": "#b3541e"},
)
axes.set(xlabel="step", ylabel="ms", title="How long each step took, on the chief")
figure.savefig("worker_dies.svg")

# %% [markdown]
# What happened in that step: whoever waited for worker 1 was told by MPI that it is gone. The two agreed on the step,
# took the state of the one that had come further, got new numbers, divided the data anew, and went on. The batch that
# was under way is not trained on again.
#
# - `--respawn` puts another process in its place, which joins at the next epoch.
# - `--min-workers 2` ends the job when fewer are left.
# - What goes on and what does not, and 200 kills in one job: [elastic training](../../docs/elastic.md).
# - Without `--elastic` the job ends, and `Distribute(checkpoint="run")` with `--restarts` goes on from the last
#   checkpoint: [checkpoints and restarts](../../docs/checkpoints.md).
