"""Several devices of a process are there wherever the script enters `scope()`."""

import sys

import pytest
from launches import environment, run

SCRIPT = """
{begin}
import numpy as np
total = float(keras.ops.sum(keras.ops.ones(3)))  # TensorFlow computes
data = tf.data.Dataset.from_tensor_slices((np.ones((8, 3)), np.ones(8))).batch(4)
with easyscale.scope():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(data, verbose=0, callbacks=[easyscale.callbacks.Distribute()])
print(total, len(tf.config.list_logical_devices("CPU")), easyscale.size())
"""


@pytest.mark.parametrize(
    "begin", ["import easyscale, keras, tensorflow as tf", "import tensorflow as tf, keras, easyscale"]
)
def test_devices_are_made_before_tensorflow_computes(begin):
    env = environment(EASYSCALE_DEVICES="2")
    done = run([sys.executable, "-c", SCRIPT.format(begin=begin)], timeout=80, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "3.0 2 2\n"
    assert done.stderr.count("EasyScale: 2 logical CPU devices in each process: there are 0 GPUs.") == 1


def test_devices_that_come_too_late_are_told_of_in_one_line():
    begin = "import tensorflow as tf, keras; keras.ops.ones(3); import easyscale"
    env = environment(EASYSCALE_DEVICES="2", EASYSCALE_LAUNCHED="")
    done = run([sys.executable, "-c", SCRIPT.format(begin=begin)], timeout=80, env=env)
    assert "ValueError: the 2 logical CPU devices must be made before TensorFlow computes" in done.stderr
