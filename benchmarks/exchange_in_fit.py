"""What the exchange costs inside of `fit()`, beside one copy of the gradients.

    easyscale launch -n 2 benchmarks/exchange_in_fit.py

The exchange is all between gradients in TensorFlow's memory and updated weights there, but the update itself: gradients
into vectors, their sum, the new weights back. Ranks start it together, so that waiting for a slower one does not count,
and both copy at the same time, too. The model is the MLP of 24.2 million weights; its optimizer is SGD.
"""

import statistics
import time

import keras
import numpy as np
from workloads import CLASSES, SETTLING, WORKLOADS

import easyscale
from easyscale.bench.fit import build
from easyscale.step.shared import Shared

STEPS = 30
communicator = easyscale.communicator.get()
seconds = []
call = Shared.call


def timed_call(self, function, inputs, results, stay=0):
    def timed(*arrays):
        communicator.barrier()
        start = time.perf_counter()
        result = function(*arrays)
        seconds.append(time.perf_counter() - start)
        return result

    return call(self, timed, inputs, results, stay)


Shared.call = timed_call
workload = WORKLOADS["mlp-adam"]
generator = np.random.default_rng(easyscale.rank())
x = generator.normal(size=(workload.batch * STEPS, *workload.shape)).astype("float32")
y = generator.integers(0, CLASSES, len(x))
model = build("mlp", "sgd", 0)
source, target = (np.ones(model.count_params(), "float32") for _ in range(2))
copies = []


def copy(batch, logs):
    communicator.barrier()
    start = time.perf_counter()
    np.copyto(target, source)
    copies.append(time.perf_counter() - start)


clock = keras.callbacks.LambdaCallback(on_train_batch_end=copy)
model.fit(
    x, y, batch_size=workload.batch, verbose=0, callbacks=[easyscale.callbacks.Distribute(check_every=10**6), clock]
)
calls = len(seconds) // len(copies)
rows = np.array(seconds[-calls * len(copies) :]).reshape(-1, calls).sum(axis=1)
slowest = communicator.all_gather_rows(np.stack([rows, copies])).max(axis=0)[:, SETTLING:]
if easyscale.is_chief():
    exchange, one_copy = (statistics.median(taken) for taken in slowest)
    print(f"exchange {1e3 * exchange:.1f} ms, one copy {1e3 * one_copy:.1f} ms: {exchange / one_copy:.2f} copies")
