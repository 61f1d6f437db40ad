"""A training in which workers step alone between rounds, and the same by the equations of the papers."""

import functools
import sys
from pathlib import Path

import keras
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))

from checkpoints_on_ranks import leave  # noqa: E402
from folders import new_folder  # noqa: E402

import easyscale  # noqa: E402
from easyscale.callbacks import Distribute  # noqa: E402

comm = easyscale.communicator.get()

BATCH, RATE, MOMENTUM = 4, 0.05, 0.8
SAMPLES = [4 * 7, 4 * 7 - 1, 4 * 3 + 1, 4 * 7][: comm.size]  # of each worker: one runs out of data before the others


def parts():
    """Each worker's inputs and targets: a linear function of three numbers, and noise."""
    generator = np.random.default_rng(3)
    x = generator.normal(size=(sum(SAMPLES), 3)).astype("float32")
    y = (x @ generator.normal(size=(3, 2)) + generator.normal(size=(sum(SAMPLES), 2))).astype("float32")
    ends = np.cumsum([0, *SAMPLES])
    return [(x[start:end], y[start:end]) for start, end in zip(ends, ends[1:], strict=False)]


def linear(optimizer=None):
    keras.utils.set_random_seed(1 + comm.rank)  # only the chief's weights are those of the computation
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, use_bias=False)])
    model.compile(optimizer or keras.optimizers.SGD(RATE, momentum=MOMENTUM), "mse")
    return model


def fit(model, update, epochs=2, callbacks=(), exchange="ring", steps=None, **options):
    distribute = Distribute(exchange, update=update, **options)
    x, y = (array[: None if steps is None else steps * BATCH] for array in parts()[comm.rank])
    common = {"batch_size": BATCH, "epochs": epochs, "shuffle": False, "verbose": 0}
    return model.fit(x, y, callbacks=[distribute, *callbacks], **common)


NESTEROV = functools.partial(keras.optimizers.SGD, 0.7, momentum=0.9, nesterov=True)


class Computed:
    """The same training in float64, by the equations of the papers, all workers in one process."""

    def __init__(self, weights, every, start_step=0, outer=(1.0, 0.0, False)):
        self.every, self.start_step, self.outer = every, start_step, outer
        self.last = np.array(weights, "float64")
        self.weights = [self.last.copy() for _ in SAMPLES]
        self.velocities = [np.zeros_like(self.last) for _ in SAMPLES]
        self.outer_velocity = np.zeros_like(self.last)
        self.samples, self.steps, self.rounds = np.zeros(len(SAMPLES)), 0, []

    def gradient(self, worker, step):
        x, y = (array[step * BATCH : (step + 1) * BATCH].astype("float64") for array in parts()[worker])
        return len(x), x.T @ (x @ self.weights[worker] - y) / max(len(x), 1)  # of the mean over both outputs

    def move(self, worker, gradient):
        self.velocities[worker] = MOMENTUM * self.velocities[worker] - RATE * gradient
        self.weights[worker] = self.weights[worker] + self.velocities[worker]

    def round(self):
        rate, momentum, nesterov = self.outer
        differences = [count * (self.last - own) for count, own in zip(self.samples, self.weights, strict=True)]
        mean = sum(differences) / self.samples.sum()
        self.outer_velocity = momentum * self.outer_velocity - rate * mean
        step = momentum * self.outer_velocity - rate * mean if nesterov else self.outer_velocity
        self.last = self.last + step
        self.weights = [self.last.copy() for _ in SAMPLES]
        self.samples[:] = 0
        self.rounds.append(self.steps)

    def epoch(self):
        since = self.steps
        for step in range(-(-max(SAMPLES) // BATCH)):
            found = [self.gradient(worker, step) for worker in range(len(SAMPLES))]
            if self.steps < self.start_step:
                mean = sum(count * gradient for count, gradient in found) / sum(count for count, _ in found)
                for worker in range(len(SAMPLES)):
                    self.move(worker, mean)
                self.last, since = self.weights[0], self.steps + 1
            else:
                for worker, (count, gradient) in enumerate(found):
                    if count:
                        self.move(worker, gradient)
                        self.samples[worker] += count
            self.steps += 1
            if self.steps - since >= self.every:
                self.round()
                since = self.steps
        if self.samples.any():
            self.round()

    def end_fit(self):
        self.velocities = [np.mean(self.velocities, axis=0) for _ in SAMPLES]


class Watched(keras.callbacks.Callback):
    """What this worker has sent, and its weights, at the end of each step and of each epoch."""

    def __init__(self):
        super().__init__()
        self.sent, self.weights, self.epochs = [], [], []

    def on_train_batch_end(self, batch, logs=None):
        self.sent.append((comm.sent.messages, comm.sent.bytes))
        self.weights.append(self.model.get_weights())

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append(self.model.get_weights())


def compare_resumed(update, expected_steps, resumed_from):
    """Train, and again from the checkpoints of some steps: with the same bits. `None` stands for the end."""
    folder = new_folder()

    def trained():
        model = linear(keras.optimizers.Adam(0.05))
        history = fit(model, update, checkpoint=folder, every=1, keep=20).history
        return [*model.get_weights(), *map(np.array, model.optimizer.variables)], history

    weights, history = trained()
    comm.barrier()  # the chief has written
    written = sorted(int(path.name.split("-")[1]) for path in folder.glob("step-*"))
    comm.barrier()  # before some are taken away
    assert written == expected_steps, written
    for step in resumed_from:  # and from the end: no step is left
        if step is not None:
            leave(folder, step)
        again, same_history = trained()
        assert same_history == {name: values[-len(same_history[name]) :] for name, values in history.items()}
        for found, expected in zip(again, weights, strict=True):
            np.testing.assert_array_equal(found, expected, err_msg=f"from step {step}")
