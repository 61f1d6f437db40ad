"""What it costs to record the parts of each step, as `--profile` and `--trace` do: steps with and without, in turns.

easyscale launch -n 2 --profile benchmarks/profile_cost.py

Three models of a kind are trained by the same processes, one while parts are recorded, two while not, which shows what
is noise. Ratios are those of the medians of all steps. What `--profile` says of each turn comes before.
"""

import argparse
import statistics
import time

import keras
import numpy as np

import easyscale
from easyscale.bench.fit import build
from easyscale.callbacks import Distribute

parser = argparse.ArgumentParser()
parser.add_argument("--rounds", type=int, default=12)
parser.add_argument("--models", default="digits,mlp")
args = parser.parse_args()

timeline = easyscale.communicator.get().timeline


def digits():
    """The conv net of examples/digits.py."""
    layers = [
        keras.layers.Conv2D(width, 3, padding="same", activation="relu", name=f"conv{number}")
        for number, width in enumerate((32, 64, 64))
    ]
    head = [keras.layers.Dropout(0.4), keras.layers.Dense(64, activation="relu"), keras.layers.Dropout(0.4)]
    pooled = [keras.layers.MaxPooling2D(), keras.layers.Flatten()]
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers, *pooled, *head, keras.layers.Dense(10)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model


class Ends(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seconds, self.processor = (
            [],
            [],
        )  # of each step: on the wall, and of the processor, which other work disturbs less

    def on_train_begin(self, logs=None):
        self.ends = []

    def on_train_batch_end(self, batch, logs=None):
        self.ends.append((time.perf_counter(), time.process_time()))

    def on_train_end(self, logs=None):
        wall, processor = np.diff(self.ends[2:], axis=0).T
        self.seconds += wall.tolist()
        self.processor += processor.tolist()


# Of each: how it is made, the shape of a sample, the samples of a process in a step, the steps of a turn.
KINDS = {"digits": (digits, (8, 8, 1), 32, 40), "mlp": (lambda: build("mlp", "adam", 0), (784,), 128, 10)}

WAYS = ("recorded", "plain", "again")

for name in args.models.split(","):
    make, shape, batch, steps = KINDS[name]
    generator = np.random.default_rng(easyscale.rank())
    x, y = generator.normal(size=(batch * steps, *shape)).astype("float32"), generator.integers(0, 10, batch * steps)
    models, clocks = {way: make() for way in WAYS}, {way: Ends() for way in WAYS}

    def train(way, callbacks, models=models, x=x, y=y, batch=batch):
        timeline.is_on = way == WAYS[0]
        models[way].fit(x, y, batch_size=batch, verbose=0, callbacks=[Distribute(check_every=10**6), *callbacks])

    for way in WAYS:
        train(way, [])  # traces
    for turn in range(args.rounds):
        for way in WAYS if turn % 2 else WAYS[::-1]:
            train(way, [clocks[way]])
    for what in ("seconds", "processor"):
        recorded, plain, again = (statistics.median(getattr(clocks[way], what)) for way in WAYS)
        if easyscale.is_chief():
            times = zip(WAYS, (recorded, plain, again), strict=True)
            print(f"{name}, {what}:", ", ".join(f"{1e3 * value:.2f} ms {way}" for way, value in times))
            print(f"{(plain + again) / 2 / recorded:.3f} of the speed without, {plain / again:.3f} of what is the same")
