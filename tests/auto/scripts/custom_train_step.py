"""A model whose `train_step` is its own, with metrics of its own, on a PyDataset."""

import sys

import keras
import numpy as np
import tensorflow as tf

folder = sys.argv[1]
keras.utils.set_random_seed(0)

loss_tracker = keras.metrics.Mean(name="loss")
mae_metric = keras.metrics.MeanAbsoluteError(name="mae")


class CustomModel(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = keras.ops.mean(keras.losses.mean_squared_error(y, y_pred))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        loss_tracker.update_state(loss)
        mae_metric.update_state(y, y_pred)
        return {"loss": loss_tracker.result(), "mae": mae_metric.result()}

    def test_step(self, data):
        x, y = data
        y_pred = self(x, training=False)
        loss = keras.ops.mean(keras.losses.mean_squared_error(y, y_pred))
        loss_tracker.update_state(loss)
        mae_metric.update_state(y, y_pred)
        return {"loss": loss_tracker.result(), "mae": mae_metric.result()}

    @property
    def metrics(self):
        return [loss_tracker, mae_metric]


class Batches(keras.utils.PyDataset):
    def __init__(self, x, y, batch_size, **kwargs):
        super().__init__(**kwargs)
        self.x, self.y, self.batch_size = x, y, batch_size

    def __len__(self):
        return int(np.ceil(len(self.x) / self.batch_size))

    def __getitem__(self, index):
        low, high = index * self.batch_size, min((index + 1) * self.batch_size, len(self.x))
        return self.x[low:high], self.y[low:high]


x = np.random.random((1000, 32)).astype("float32")
y = x[:, :4].sum(axis=1, keepdims=True)
inputs = keras.Input(shape=(32,))
hidden = keras.layers.Dense(16, activation="tanh")(inputs)
outputs = keras.layers.Dense(1)(hidden)
model = CustomModel(inputs, outputs)
model.compile(optimizer=keras.optimizers.SGD(0.05, momentum=0.9))
history = model.fit(Batches(x[:800], y[:800], 36), epochs=3, validation_data=(x[800:], y[800:]), verbose=0)
score = model.evaluate(x[800:], y[800:], verbose=0)
np.savez(
    f"{folder}/result.npz", *model.get_weights(), score=score, predictions=model.predict(x, verbose=0),
    **history.history,
)  # fmt: skip
