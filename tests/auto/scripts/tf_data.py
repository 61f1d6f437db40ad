"""A tf.data pipeline of images, batched and prefetched, with one for validation."""

import sys

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

folder, shuffle = sys.argv[1], "shuffle" in sys.argv[2:]
tf.random.set_seed(0)
keras.utils.set_random_seed(0)

digits = load_digits()
images, labels = digits.images[..., None].astype("float32"), digits.target
train_ds = tf.data.Dataset.from_tensor_slices((images[:1203], labels[:1203]))
test_ds = tf.data.Dataset.from_tensor_slices((images[1203:], labels[1203:]))


def normalize(image, label):
    return image / 16.0, label


train_ds = train_ds.map(normalize, num_parallel_calls=tf.data.AUTOTUNE).cache()
if shuffle:
    train_ds = train_ds.shuffle(1203)
train_ds = train_ds.batch(50).prefetch(tf.data.AUTOTUNE)
test_ds = test_ds.map(normalize).batch(64).cache().prefetch(tf.data.AUTOTUNE)

model = keras.models.Sequential(
    [keras.layers.Flatten(input_shape=(8, 8, 1)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)]
)
model.compile(
    optimizer=keras.optimizers.Adam(0.01),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=[keras.metrics.SparseCategoricalAccuracy()],
)
history = model.fit(train_ds, epochs=15 if shuffle else 3, validation_data=test_ds, verbose=2)
score = model.evaluate(test_ds, verbose=0)
np.savez(
    f"{folder}/result.npz", *model.get_weights(), score=score, predictions=model.predict(test_ds, verbose=0),
    **history.history,
)  # fmt: skip
