"""Handwritten digits: convolutions by data, fully connected layers by model, as Krizhevsky trained AlexNet in 2014.

    python examples/hybrid.py
    easyscale launch -n 2 examples/hybrid.py
    easyscale launch -n 4 examples/hybrid.py --split "fc1=columns,fc2=rows"

Every process has the convolutions, and its part of each batch; of a fully connected layer it has a slice, which
computes for the samples of all. The convolutions' gradients travel, and the activations around the others. The lines
with a comment are the ones that EasyScale adds.
"""

import argparse

import keras
import numpy as np
from sklearn.datasets import load_digits

import easyscale

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--batch-size", type=int, default=96, help="samples in one step of all processes together")
parser.add_argument("--units", type=int, default=512, help="of each fully connected layer")
parser.add_argument("--split", default="fc.*=columns", help="which layers are split, and how; '' for none")
args = parser.parse_args()

keras.utils.set_random_seed(1)
digits = load_digits()
images, labels = digits.images[..., None].astype("float32") / 16, digits.target
x_train, y_train, x_test, y_test = images[:1440], labels[:1440], images[1440:], labels[1440:]

model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
        keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dense(args.units, activation="relu", name="fc1"),
        keras.layers.Dense(args.units, activation="relu", name="fc2"),
        keras.layers.Dense(10, name="logits"),
    ]
)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss, metrics=["accuracy"])

layers = dict(one.split("=") for one in args.split.split(",") if one)
split = easyscale.parallel.Split(layers) if layers else None  # which layers are divided over processes
distribute = easyscale.callbacks.Distribute(model_parallel=split)
x_train, y_train = easyscale.shard(x_train, y_train)  # this process's part of the data
model.fit(
    x_train,
    y_train,
    batch_size=easyscale.local_batch(args.batch_size),  # this process's part of a batch
    epochs=args.epochs,
    verbose=2,
    callbacks=[distribute],  # one model on all processes
)

weights = [float(np.sum(weight, dtype="float64")) for weight in model.get_weights()]
all_ranks = easyscale.communicator.get().all_gather_object(weights)  # the list of what all processes have
if easyscale.is_chief():  # one process prints
    print(f"test accuracy: {model.evaluate(x_test, y_test, verbose=0)[1]:.4f}")
    print(f"equal weights on all processes: {'yes' if all(one == weights for one in all_ranks) else 'no'}")
