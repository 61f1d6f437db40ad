"""A training in which rank 1 fails as told: `python training.py EXCHANGE FAULT MOMENT FOLDER [UPDATE]`.

It writes the time of the fault to FOLDER, and the weights at the end. What fails once does not fail again.
"""

import json
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path

import keras
import numpy as np

import easyscale
from easyscale.checkpoint import folder

EXCHANGE, FAULT, MOMENT, FOLDER = sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4])
UPDATE = sys.argv[5] if len(sys.argv) > 5 else None
EPOCHS, STEPS = 3, 8
BATCH = easyscale.local_batch(12)
VICTIM = 0 if MOMENT == "checkpoint" else 1  # the chief writes
HAS_FAILED, GOES_ON = FOLDER / "failed", FOLDER / "goes_on"
IS_SECOND = HAS_FAILED.exists()  # the start of this job
OF_THE_SCRIPT = ("callback", "exit3", "exit0")  # fails beside the thread that writes a checkpoint, and not in it
WRITES = threading.Event()


def allocate_too_much():
    memory = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), memory[1]))
    np.ones(1 << 28)


def raise_an_exception():
    raise ArithmeticError("the fault")


FAULTS = {
    "sigkill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "sigstop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "sigterm": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "callback": raise_an_exception,
    "script": raise_an_exception,
    "data": raise_an_exception,
    "tracing": raise_an_exception,
    "exit3": lambda: sys.exit(3),
    "exit0": lambda: sys.exit(0),
    "memory": allocate_too_much,
    "pauses": lambda: time.sleep(8),  # until somebody asks it to end
    "host": lambda: time.sleep(600),  # and is gone before
}


def fail_at(moment, fault=FAULT):
    if moment == MOMENT and fault == FAULT and easyscale.rank() == VICTIM and not HAS_FAILED.exists():
        HAS_FAILED.write_text(str(time.time()))
        FAULTS[FAULT]()


class Failing(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        fail_at("before step 1")

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if IS_SECOND and easyscale.is_chief() and not GOES_ON.exists():
            GOES_ON.write_text(str(time.time()))
        if WRITES.is_set():
            fail_at("checkpoint")
        if (self.epoch, batch) == (1, 4):
            fail_at("mid-epoch")
        if (self.epoch, batch) == (EPOCHS - 1, STEPS - 1):
            fail_at("last step")

    def on_test_batch_end(self, batch, logs=None):
        if self.epoch == 1:
            fail_at("validation")


class Data(keras.utils.PyDataset):
    def __init__(self, x, y):
        super().__init__()
        self.x, self.y, self.taken = x, y, 0

    def __len__(self):
        return STEPS

    def __getitem__(self, index):
        self.taken += 1
        if self.taken > STEPS + 4:
            fail_at("mid-epoch", "data")
        rows = slice(index * BATCH, (index + 1) * BATCH)
        return self.x[rows], self.y[rows]


class Traced(keras.layers.Layer):
    def compute_output_shape(self, shape):
        return shape

    def call(self, x):
        if getattr(self, "calls", 0):  # not when the model is built
            fail_at("before step 1", "tracing")
        self.calls = 1
        return x


def write(self, number, checkpoint, original=folder.Checkpoints.write):
    if number > 10 and FAULT in OF_THE_SCRIPT and MOMENT == "checkpoint":
        WRITES.set()
        time.sleep(1)
    elif number > 10:
        fail_at("checkpoint")
    return original(self, number, checkpoint)


folder.Checkpoints.write = write
fail_at("before step 1", "script")
keras.utils.set_random_seed(1)
generator = np.random.default_rng(0)
x = generator.normal(size=(STEPS * 12, 6)).astype("float32")
y = x.sum(axis=1, keepdims=True)
model = keras.Sequential([keras.Input((6,)), Traced(), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.01), "mse")
x, y = easyscale.shard(x, y)
arrays = {"x": x, "y": y, "batch_size": BATCH, "shuffle": False}
data = {"x": Data(x, y)} if FAULT == "data" else arrays
distribute = easyscale.callbacks.Distribute(EXCHANGE, update=UPDATE, checkpoint=FOLDER / "checkpoints", every=5)
plateau = keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=0, min_delta=10.0)  # in each epoch
model.fit(**data, epochs=EPOCHS, verbose=0, validation_data=(x, y), callbacks=[distribute, Failing(), plateau])
if easyscale.is_chief():
    np.savez(FOLDER / "weights.npz", *model.get_weights())
    (FOLDER / "history.json").write_text(json.dumps(model.history.history))
    print("steps", int(model.optimizer.iterations), flush=True)
