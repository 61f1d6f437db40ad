"""Passes through data on TensorFlow."""

import os
import subprocess
import sys

import tensorflow as tf

from easyscale.backend.tensorflow import data

# A process that is kept to one processor trains and validates; which of its passes TensorFlow tunes.
ALONE = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import keras, numpy as np, tensorflow as tf
from easyscale.callbacks import Distribute
tuned, begin = [], tf.data.Dataset.__iter__
def iterate(dataset):
    if isinstance(dataset.element_spec, tuple):  # of samples and targets
        tuned.append(dataset.options().autotune.enabled)
    return begin(dataset)
tf.data.Dataset.__iter__ = iterate
x = np.ones((8, 2), "float32")
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
def train(x):
    tuned.clear()
    model.fit(x, epochs=2, verbose=0, validation_data=x, callbacks=[Distribute()])
    return set(tuned)
dataset, options = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(4), tf.data.Options()
options.autotune.enabled = True
print(train(dataset), train(dataset.with_options(options)))
"""


def test_in_a_process_of_one_processor_passes_are_not_tuned_unless_their_options_say():
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "{False} {True}\n"), done.stderr


def test_with_several_processors_passes_are_tuned(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    dataset = tf.data.Dataset.range(4)
    assert data.end_at_once(dataset) is dataset


def test_what_is_no_dataset_of_tensorflow_stays(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    assert data.end_at_once("of a strategy") == "of a strategy"
    assert data.end_at_once(tf.data.Dataset.range(4)).options().autotune.enabled is False
