"""Text vectorisation, an Embedding, and a model of strings around the one that was trained."""

import sys

import keras
import numpy as np
import tensorflow as tf
from keras import layers

folder = sys.argv[1]
keras.utils.set_random_seed(0)

words = {0: ["awful", "boring", "dull", "poor"], 1: ["great", "lovely", "moving", "rich"]}
filler = ["the", "film", "was", "and", "a", "plot", "actor"]
rng = np.random.default_rng(0)
labels = rng.integers(0, 2, 400)
texts = [" ".join([*rng.choice(filler, 5), *rng.choice(words[int(label)], 2)]) for label in labels]

raw_train_ds = tf.data.Dataset.from_tensor_slices((texts[:300], labels[:300])).batch(20)
raw_test_ds = tf.data.Dataset.from_tensor_slices((texts[300:], labels[300:])).batch(20)

vectorize_layer = layers.TextVectorization(max_tokens=50, output_mode="int", output_sequence_length=10)
vectorize_layer.adapt(raw_train_ds.map(lambda x, y: x))


def vectorize_text(text, label):
    return vectorize_layer(tf.expand_dims(text, -1)), label


train_ds = raw_train_ds.map(vectorize_text).cache().prefetch(buffer_size=10)
test_ds = raw_test_ds.map(vectorize_text).cache().prefetch(buffer_size=10)

model = keras.Sequential(
    [
        layers.Embedding(50, 16),
        layers.GlobalAveragePooling1D(),
        layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile("adam", "binary_crossentropy", metrics=["accuracy", keras.metrics.AUC(name="auc")])
stopping = keras.callbacks.EarlyStopping(monitor="val_loss", patience=2)
history = model.fit(train_ds, validation_data=test_ds, epochs=4, verbose=2, callbacks=[stopping])
score = model.evaluate(test_ds, verbose=0)

export_model = keras.Sequential([vectorize_layer, model])
export_model.compile(loss="binary_crossentropy", metrics=["accuracy"])
predictions = export_model.predict(tf.constant(["a great film", "the plot was awful", "lovely"]), verbose=0)
np.savez(f"{folder}/result.npz", *model.get_weights(), score=score, predictions=predictions, **history.history)
