"""Handwritten digits: a small conv net, trained by as many processes as it is started with.

    python examples/digits.py
    easyscale launch -n 2 examples/digits.py --exchange ring

The lines with a comment are the ones that EasyScale adds. `samples/s` is the speed of the median step after the first
epoch, so neither tracing counts nor what TensorFlow's data pipeline does between epochs.
"""

import argparse
import hashlib
import statistics
import sys
import time

import keras
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import easyscale

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=25)
parser.add_argument("--batch-size", type=int, default=256, help="samples in one step of all processes together")
parser.add_argument("--exchange", default=None, help="ring, tree, mpi, ...; by default what `easyscale launch` says")
args = parser.parse_args()


class StepTimes(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.seconds = []

    def on_train_batch_begin(self, batch, logs=None):
        self.start = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        self.seconds.append(time.perf_counter() - self.start)


keras.utils.set_random_seed(1)
digits = load_digits()
x_train, x_test, y_train, y_test = train_test_split(
    digits.images[..., None] / 16.0, digits.target, test_size=360, stratify=digits.target, random_state=0
)

model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
        keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
        keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dropout(0.4),
        keras.layers.Dense(64, activation="relu"),
        keras.layers.Dropout(0.4),
        keras.layers.Dense(10),
    ]
)
model.compile(
    optimizer=keras.optimizers.Adam(3e-3),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)

times = StepTimes()
x_train, y_train = easyscale.shard(x_train, y_train)  # this process's part of the data
model.fit(
    x_train,
    y_train,
    batch_size=easyscale.local_batch(args.batch_size),  # this process's part of a batch
    epochs=args.epochs,
    verbose=2,
    callbacks=[easyscale.callbacks.Distribute(args.exchange), times],  # one model on all processes
)

weights = hashlib.sha256(b"".join(weight.tobytes() for weight in model.get_weights())).hexdigest()
all_ranks = easyscale.communicator.get().all_gather_object(weights)  # the list of what all processes have computed
equal = len(set(all_ranks)) == 1
if easyscale.is_chief():  # one process prints
    _, accuracy = model.evaluate(x_test, y_test, verbose=0)
    later = times.seconds[len(times.seconds) // args.epochs :] or times.seconds
    print(f"test accuracy: {accuracy:.4f}")
    print(f"samples/s: {args.batch_size / statistics.median(later):.0f}")
    print(f"equal weights on all {easyscale.size()} ranks: {'yes' if equal else 'no'}")
sys.exit(not equal)
