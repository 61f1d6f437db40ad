"""One worker of four is three times slower than the others: who waits for it?

    easyscale launch -n 4 --servers 1 examples/stragglers.py --plot stragglers.png

Trains the digits for some seconds in each mode of the parameter server, and prints how many samples a second went into
the weights, how stale gradients were, and the loss. Each step is made to last as long as it would with a larger model,
so that the workers do not compete for the cores of one machine.
"""

import argparse
import json
import time

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import easyscale
from easyscale.exchange import ParameterServer

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=12, help="of training in each mode")
parser.add_argument("--pace", type=float, default=0.06, help="seconds that a step takes at least")
parser.add_argument("--slow", type=float, default=3, help="how many times slower the last worker is")
parser.add_argument("--batch-size", type=int, default=16, help="samples in a worker's gradient")
parser.add_argument("--json", help="file for the results")
parser.add_argument("--plot", help="file for the plot, .png or .svg; needs matplotlib")
args = parser.parse_args()

RANK, WORKERS = easyscale.rank(), easyscale.size()
TRACING = 4  # steps at the begin that do not count
RATE = 0.1  # for the gradient of one worker; a step of all together goes as far as their steps one after the other

x, y = load_digits(return_X_y=True)
x = (x / 16).astype("float32")
x_test, y_test = x[1437:], y[1437:]
MODES = {  # name: exchange, learning rate, whether there is a slow worker
    "sync, nobody slow": (ParameterServer(), RATE * WORKERS, False),
    "sync": (ParameterServer(), RATE * WORKERS, True),
    "backup, nobody slow": (ParameterServer(backup_workers=1), RATE * (WORKERS - 1), False),
    "backup": (ParameterServer(backup_workers=1), RATE * (WORKERS - 1), True),
    "bounded": (ParameterServer("bounded", staleness=4), RATE, True),
    "async": (ParameterServer("async"), RATE, True),
}


class Watch(keras.callbacks.Callback):
    """Slows steps down, ends training when the time is over, and looks at the loss meanwhile."""

    def __init__(self, slow):
        super().__init__()
        self.pace = args.pace * (args.slow if slow and RANK == WORKERS - 1 else 1)
        self.times, self.losses, self.begun = [], [], None

    def on_train_batch_begin(self, batch, logs=None):
        self.step = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        now = time.perf_counter()
        if batch == TRACING - 1:
            self.begun = now
        if self.begun is not None and RANK == 0:
            if not self.times or now - self.begun > self.times[-1] + 0.5:
                logits = self.model(x_test, training=False)
                loss = keras.ops.mean(keras.losses.sparse_categorical_crossentropy(y_test, logits, from_logits=True))
                self.times.append(now - self.begun)
                self.losses.append(float(loss))
            if now - self.begun > args.seconds:
                self.model.stop_training = True
        time.sleep(max(0, self.pace - (time.perf_counter() - self.step)))


def train(exchange, rate, slow):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(rate), loss, metrics=["accuracy"])
    data = tf.data.Dataset.from_tensor_slices(easyscale.shard(x[:1437], y[:1437]))
    options = tf.data.Options()
    options.autotune.enabled = False  # its thread holds up who lets go of data before their end
    data = data.shuffle(400, seed=RANK).repeat().batch(args.batch_size).with_options(options)
    watch = Watch(slow)
    distribute = easyscale.callbacks.Distribute(exchange)  # the only line that chooses the mode
    history = model.fit(
        data, steps_per_epoch=1_000_000, shuffle=False, verbose=0, callbacks=[distribute, watch]
    ).history
    counts = history.get("staleness_histogram", [{}])[0]
    gradients = sum(counts.values()) or WORKERS * int(model.optimizer.iterations)
    _, accuracy = model.evaluate(x_test, y_test, verbose=0)
    return {
        "samples/s": (gradients - TRACING * WORKERS) * args.batch_size / args.seconds,
        "staleness": history.get("staleness", [0.0])[0],
        "largest staleness": history.get("staleness_max", [0.0])[0],
        "dropped": history.get("dropped", [0.0])[0],
        "accuracy": accuracy,
        "times": watch.times,
        "losses": watch.losses,
    }


def plot(results, file):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
    names = list(results)
    axes[0].barh(names[::-1], [results[name]["samples/s"] for name in names[::-1]])
    axes[0].set_xlabel("samples/s")
    for name in names:
        times, losses = np.array(results[name]["times"]), results[name]["losses"]
        axes[1].plot(times, losses, label=name)
        axes[2].plot(times * results[name]["samples/s"], losses, label=name)
    axes[1].set_xlabel("seconds")
    axes[2].set_xlabel("samples")
    for axis in axes[1:]:
        axis.set_ylabel("test loss")
        axis.set_yscale("log")
    axes[1].legend()
    figure.suptitle(f"{WORKERS} workers, one {args.slow:g} times slower")
    figure.savefig(file, dpi=120)


results = {}
for name, options in MODES.items():
    results[name] = result = train(*options)
    if easyscale.is_chief():
        print(
            f"{name:20} {result['samples/s']:5.0f} samples/s; staleness {result['staleness']:.2f}, at most "
            f"{result['largest staleness']:g}; {result['dropped']:g} dropped; accuracy {result['accuracy']:.4f}",
            flush=True,
        )
if easyscale.is_chief():

    def ratio(mode, other):
        return results[mode]["samples/s"] / results[other]["samples/s"]

    print(f"async is {ratio('async', 'sync'):.2f} times as fast as sync, bounded {ratio('bounded', 'sync'):.2f} times")
    print(f"with one backup worker a slow one leaves {ratio('backup', 'backup, nobody slow'):.0%} of the speed")
    if args.json:
        with open(args.json, "w") as file:
            json.dump(results, file, indent=1)
    if args.plot:
        plot(results, args.plot)
