"""Trains with Keras 2, by itself or under TensorFlow's MultiWorkerMirroredStrategy."""

import os
import sys
import time

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
import tf_keras as keras  # noqa: E402
from turns import serve  # noqa: E402
from workloads import CLASSES, WORKLOADS, steps_of  # noqa: E402

workload = WORKLOADS[sys.argv[1]]
ring = tf.distribute.experimental.CommunicationOptions(
    implementation=tf.distribute.experimental.CommunicationImplementation.RING
)
strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=ring)
workers = strategy.num_replicas_in_sync


def build():
    if workload.model == "mlp":
        units = [keras.layers.Dense(count, activation="relu") for count in (4096, 4096, 1024)]
        model = keras.Sequential([keras.Input((784,)), *units, keras.layers.Dense(CLASSES)])
    else:
        model = keras.applications.ResNet50(
            weights=None, input_shape=workload.shape, classes=CLASSES, classifier_activation=None
        )
    optimizer = keras.optimizers.Adam() if workload.optimizer == "adam" else keras.optimizers.SGD(0.01, momentum=0.9)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def batches(count):
    """A turn's data in batches of `count` samples."""
    generator = np.random.default_rng(0)
    repeats = count // workload.batch
    x = generator.normal(size=(workload.samples, *workload.shape)).astype("float32")
    y = generator.integers(0, CLASSES, workload.samples)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return tf.data.Dataset.from_tensor_slices((x, y)).repeat(repeats).batch(count).with_options(options)


with strategy.scope():
    models = {True: build()}
models[False] = build()
# Under the strategy each worker takes its part of a batch, as fit() is used there.
data = {False: batches(workload.batch), True: batches(workload.batch * workers)}


def work(together):
    ends = []
    clock = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: ends.append(time.perf_counter()))
    models[together].fit(data[together], verbose=0, callbacks=[clock])
    return steps_of(ends)


serve(work)
