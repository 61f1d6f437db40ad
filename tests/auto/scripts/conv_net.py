"""A conv net on arrays, with a part of them held out."""

import sys

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_digits

folder, shuffle = sys.argv[1], "shuffle" in sys.argv[2:]
keras.utils.set_random_seed(0)

digits = load_digits()
x_train = np.expand_dims(digits.images[:1000] / 16.0, -1).astype("float32")
y_train = keras.utils.to_categorical(digits.target[:1000], 10)
x_test = np.expand_dims(digits.images[1000:] / 16.0, -1).astype("float32")
y_test = keras.utils.to_categorical(digits.target[1000:], 10)

model = keras.Sequential(
    [
        keras.Input(shape=(8, 8, 1)),
        layers.Conv2D(16, kernel_size=(3, 3), activation="relu"),
        layers.MaxPooling2D(pool_size=(2, 2)),
        layers.Flatten(),
        layers.Dense(10, activation="softmax"),
    ]
)
model.compile(loss="categorical_crossentropy", optimizer="adam", metrics=["accuracy"])
checkpoint = keras.callbacks.ModelCheckpoint(f"{folder}/best.keras", save_best_only=True)
history = model.fit(
    x_train, y_train, batch_size=32, epochs=20 if shuffle else 3, validation_split=0.1, shuffle=shuffle, verbose=2,
    class_weight={label: 1.0 + 0.1 * label for label in range(10)}, callbacks=[checkpoint],
)  # fmt: skip
score = model.evaluate(x_test, y_test, verbose=0)
print("Test loss:", score[0])
print("Test accuracy:", score[1])

best = keras.models.load_model(f"{folder}/best.keras")
again = best.evaluate(x_test, y_test, verbose=0, return_dict=True)
model.save_weights(f"{folder}/model.weights.h5")
np.savez(
    f"{folder}/result.npz", *model.get_weights(), score=score, best=list(again.values()),
    predictions=model.predict(x_test, verbose=0), **history.history,
)  # fmt: skip
