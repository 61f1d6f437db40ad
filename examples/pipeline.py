"""A U-Net that takes noise out of handwritten digits, cut into stages: each process trains some of its layers.

    python examples/pipeline.py
    easyscale launch -n 2 examples/pipeline.py --stages 2 --microbatches 8
    easyscale launch -n 4 examples/pipeline.py --stages 2

On 4 processes with 2 stages two pipelines train side by side, each on its part of the data. The lines with a comment
are the ones that EasyScale adds.
"""

import argparse

import keras
import numpy as np
from sklearn.datasets import load_digits

import easyscale

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--batch-size", type=int, default=96, help="samples in one step of all processes together")
parser.add_argument("--stages", type=int, default=2)
parser.add_argument("--microbatches", type=int, default=8)
parser.add_argument("--schedule", default="1f1b", help="1f1b or gpipe")
args = parser.parse_args()

keras.utils.set_random_seed(1)
clean = load_digits().images[..., None].astype("float32") / 16
noisy = clean + np.random.default_rng(1).normal(scale=0.3, size=clean.shape).astype("float32")
x_train, y_train, x_test, y_test = noisy[:1440], clean[:1440], noisy[1440:], clean[1440:]


def convolution(filters, name):
    return keras.layers.Conv2D(filters, 3, padding="same", activation="relu", name=name)


image = keras.Input((8, 8, 1))
large = convolution(16, "large")(image)
middle = convolution(32, "middle")(keras.layers.MaxPooling2D()(large))
x = convolution(32, "small")(keras.layers.MaxPooling2D()(middle))
x = keras.layers.Concatenate()([keras.layers.UpSampling2D()(x), middle])
x = convolution(32, "middle_again")(x)
x = keras.layers.Concatenate()([keras.layers.UpSampling2D()(x), large])
model = keras.Model(image, keras.layers.Conv2D(1, 3, padding="same", name="clean")(x))
model.compile(keras.optimizers.Adam(3e-3), "mse")

pipeline = easyscale.parallel.Pipeline(args.stages, args.microbatches, args.schedule)  # how the model is cut
distribute = easyscale.callbacks.Distribute(model_parallel=pipeline)  # before data are divided
x_train, y_train = easyscale.shard(x_train, y_train)  # this pipeline's part of the data
model.fit(
    x_train,
    y_train,
    batch_size=easyscale.local_batch(args.batch_size),  # this pipeline's part of a batch
    epochs=args.epochs,
    verbose=2,
    callbacks=[distribute],  # one model on all processes
)

weights = [float(np.sum(weight, dtype="float64")) for weight in model.get_weights()]
all_ranks = easyscale.communicator.get().all_gather_object(weights)  # the list of what all processes have
if easyscale.is_chief():  # one process prints
    print(f"error of the noisy images: {np.mean((x_test - y_test) ** 2):.4f}")
    print(f"error behind the model: {model.evaluate(x_test, y_test, verbose=0):.4f}")
    print(f"equal weights on all processes: {'yes' if all(other == weights for other in all_ranks) else 'no'}")
