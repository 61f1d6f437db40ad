"""Handwritten digits on Kubernetes: trains on all ranks of the job, and goes on from its checkpoint when started again.

    easyscale launch train.py --checkpoints /checkpoints/digits

The lines with a comment are the ones that EasyScale adds.
"""

import argparse

import keras
from sklearn.datasets import load_digits

import easyscale

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=25)
parser.add_argument("--checkpoints", default="run", help="folder that all workers see")
args = parser.parse_args()

keras.utils.set_random_seed(1)
digits = load_digits()
images, labels = digits.images[..., None] / 16.0, digits.target

model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(32, 3, activation="relu"),
        keras.layers.Conv2D(64, 3, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(10),
    ]
)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])

x, y = easyscale.shard(images, labels)  # this process's part of the data
batch_size = easyscale.local_batch(256)  # this process's part of a batch
distribute = easyscale.callbacks.Distribute(checkpoint=args.checkpoints, every="1min")  # one model on all processes
model.fit(x, y, batch_size=batch_size, epochs=args.epochs, verbose=2, callbacks=[distribute])
if easyscale.is_chief():  # one process prints
    _, accuracy = model.evaluate(images, labels, verbose=0)
    print(f"accuracy, trained by {easyscale.size()} ranks: {accuracy:.4f}")
