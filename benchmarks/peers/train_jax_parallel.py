"""Trains with Keras 3 on JAX under `keras.distribution.DataParallel`, whose processes sum by Gloo."""

import os
import sys
import time

import jax

jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(
    f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}", int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
)

import keras  # noqa: E402
import numpy as np  # noqa: E402
from turns import serve  # noqa: E402
from workloads import CLASSES, WORKLOADS, steps_of  # noqa: E402

from easyscale.bench.models import ZOO  # noqa: E402

keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
keras.utils.set_random_seed(1)  # all processes must begin alike
workload = WORKLOADS[sys.argv[1]]
generator = np.random.default_rng(int(os.environ["RANK"]))
x = generator.normal(size=(workload.samples, *workload.shape)).astype("float32")
y = generator.integers(0, CLASSES, workload.samples)
model = ZOO[workload.model].make(workload.shape[0], CLASSES)
optimizer = keras.optimizers.SGD(0.01, momentum=0.9) if workload.optimizer == "momentum" else workload.optimizer
model.compile(optimizer, ZOO[workload.model].loss())


class Batches(keras.utils.PyDataset):
    """The batches of this process; arrays would be divided by Keras."""

    def __len__(self):
        return len(x) // workload.batch

    def __getitem__(self, index):
        own = slice(index * workload.batch, (index + 1) * workload.batch)
        return x[own], y[own]


def work(clock="perf_counter"):
    ends, now = [], getattr(time, clock)

    def note(batch, logs):
        float(logs["loss"])
        ends.append(now())

    model.fit(Batches(), shuffle=False, verbose=0, callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=note)])
    return steps_of(ends)


serve(work)
