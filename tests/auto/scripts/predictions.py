"""Data that `predict` takes: batches of all sizes, outputs of several rows for each sample, or of several kinds."""

import sys

import keras
import numpy as np
import tensorflow as tf

folder = sys.argv[1]
sizes = [3, 4, 4, 6, 5, 1, 4]
ends = np.cumsum([0, *sizes])
x = np.random.default_rng(0).normal(size=(ends[-1], 6, 2)).astype("float32")
results = {}


class Batches(keras.utils.PyDataset):
    def __init__(self, ends):
        super().__init__()
        self.ends = ends

    def __len__(self):
        return len(self.ends) - 1

    def __getitem__(self, index):
        return x[self.ends[index] : self.ends[index + 1]], np.zeros(self.ends[index + 1] - self.ends[index])


def batches():
    for start, end in zip(ends, ends[1:], strict=False):
        yield x[start:end]


inputs = keras.Input((6, 2))
flat = keras.Model(inputs, keras.layers.Flatten()(inputs))
two = keras.Model(inputs, {"sum": keras.ops.sum(inputs, axis=1), "steps": keras.ops.reshape(inputs, (-1, 2))})
of_sizes = tf.data.Dataset.from_generator(batches, output_signature=tf.TensorSpec((None, 6, 2)))
data = {
    "arrays": x,
    "other_sizes": Batches(ends),
    "odd_batches": Batches(np.arange(0, ends[-1] + 1, 9)),
    "single_samples": Batches(np.arange(ends[-1] + 1)),
    "one_batch": Batches(np.array([0, 5])),
    "dataset": tf.data.Dataset.from_tensor_slices(x).batch(5),
    "dataset_of_other_sizes": of_sizes,
    "dataset_of_one": tf.data.Dataset.from_tensor_slices(x[:4]).batch(5),
    "dataset_of_pairs": tf.data.Dataset.from_tensor_slices((x, x[:, 0])).batch(1),
}
for name, given in data.items():
    results[name] = flat.predict(given, verbose=0)
    found = two.predict(given, verbose=0)
    results[f"{name}_sum"], results[f"{name}_steps"] = found["sum"], found["steps"]
steps = keras.Input((None,))
lengths = [6, 3, 6, 2, 6, 1, 6, 4, 4, 4, 3, 2]  # a worker's first batches are of one length, its later ones are not
padded = tf.data.Dataset.from_generator(
    lambda: (np.arange(length) for length in lengths), output_signature=tf.TensorSpec((None,))
).padded_batch(2)
results["padded"] = keras.Model(steps, keras.ops.sum(steps, axis=1, keepdims=True)).predict(padded, verbose=0)
numbers = keras.Input((1,), dtype="int64")
words = keras.Model(numbers, keras.layers.StringLookup(vocabulary=["a", "b"], invert=True)(numbers))
results["words"] = np.array([word == b"a" for word in words.predict(np.arange(7)[:, None] % 3, verbose=0).ravel()])
for name in ("arrays", "other_sizes", "dataset"):
    results[f"{name}_begin"] = two.predict(data[name], steps=3, verbose=0)["steps"]
np.savez(f"{folder}/result.npz", **results)
