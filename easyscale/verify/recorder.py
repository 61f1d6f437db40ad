"""What one rank does in its first steps, in files: `easyscale verify` compares those of one process and of several.

rank-1.json         of every rank: what it has recorded, and a digest of each weight after each update
weights-4.npz       of the chief: the trained variables after the fourth update, of whichever optimizer
metrics-4-1.npz     of every rank: the states of the metrics then, and the model's other variables
sum-4.npz           of the chief: what the fourth `allreduce` has summed up, where nothing is trained
"""

import hashlib
import json
import os
import sys

import numpy as np

__all__ = ["FITS", "Finished", "Recorder"]

FITS = 3  # so many are recorded, each with its first steps


class Finished(Exception):
    """All that is compared has been recorded: the script need not go on."""


class Recorder:
    """Writes down the first steps of a rank, and ends its script after them.

    Args:
        folder: String. Where the files go.
        rank: Int. This rank's number.
        steps: Int. How many steps of each `fit()` are recorded; of several optimizers, of each so many on average.

    Attributes:
        has_finished: Bool. Whether `Finished` has been raised.
    """

    def __init__(self, folder: str, rank: int, steps: int):
        self._folder, self._rank, self._steps = folder, rank, steps
        self._notes: dict[str, list[str]] = {"switched_off": [], "random": [], "unsynchronized": [], "failed": []}
        self.has_finished = self._was_complete = False
        self._is_full = False  # at the end of a step there was enough of this `fit()`
        self._fit = 0  # the number of the `fit()` under way; 0 outside of one
        self._fits = 0  # those that have trained something
        self._first = 0  # number of updates before it, or after the last one
        self._batches: dict[int, list[str]] = {}  # number of updates -> a digest of each sample
        self._optimizers: dict[int, dict] = {}
        self._models: list[dict] = []
        self._updates: list[dict] = []
        self._step_ends: dict[int, int] = {}  # number of updates -> number of the model
        self._sums: list[np.ndarray] = []

    def begin_fit(self) -> None:
        """Take in that a `fit()` begins, of which the first steps are recorded."""
        self._fit, self._first, self._is_full = self._fits + 1, len(self._updates), False

    def end_fit(self) -> None:
        """Take in that a `fit()` has ended."""
        self._was_complete = self.complete
        self._fits += len(self._updates) > self._first
        self._fit, self._first, self._is_full = 0, len(self._updates), False

    @property
    def complete(self) -> bool:
        """Whether there is enough of at least one `fit()`, or of a training loop of the script's own."""
        return self._was_complete or self.has_enough

    @property
    def has_enough(self) -> bool:
        """Whether what is under way has been recorded. On all ranks it becomes so at the same place."""
        if self._updates:
            own = self._updates[self._first :]
            return bool(own) and len(own) >= self._steps * len({update["optimizer"] for update in own})
        return len(self._sums) >= self._steps and "keras" not in sys.modules  # with Keras, training may follow

    def end_if_complete(self) -> None:
        """Raise `Finished` if everything has been recorded: in a `fit()` that is not the last, the script goes on."""
        self._is_full = self.has_enough
        if self.has_enough and not 0 < self._fit < FITS:
            sys.stderr.flush()
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # TensorFlow would tell of it as of an error
            self.has_finished = True
            raise Finished

    # What the processes have in common

    def note(self, kind: str, name: str) -> None:
        """Remember a name, once.

        Args:
            kind: `"switched_off"`; `"random"`, what could not be; `"unsynchronized"`, batch normalizations;
                `"failed"`, what ended the script after enough had been recorded.
            name: String.
        """
        if name not in self._notes[kind]:
            self._notes[kind].append(name)

    def describe_optimizer(self, number: int, name: str, weights: list[str]) -> None:
        """Say what `update(number, ...)` is given."""
        self._optimizers[number] = {"name": name, "weights": weights}

    def describe_model(self, metrics: list[dict], states: list[str]) -> int:
        """Say what `end_step` is given of a model: metrics and names of other variables. Return a number for these."""
        description = {"metrics": metrics, "states": states}
        if description not in self._models:
            self._models.append(description)
        return self._models.index(description)

    # What is compared

    def update(self, optimizer: int, *weights: np.ndarray) -> None:
        """Record the weights that an optimizer has trained, after one update."""
        if self._is_full and self._fit:
            return
        digests = [hashlib.blake2b(_bytes(weight), digest_size=8).hexdigest() for weight in weights]
        self._updates.append({"optimizer": optimizer, "digests": digests, "fit": self._fit})
        self._sums.clear()
        if self._rank == 0:
            self._save(f"weights-{len(self._updates)}", weights)

    def batch(self, *arrays: np.ndarray) -> None:
        """Record what samples this rank has had in a step, before `end_step`; each array has a row for each of them."""
        if len(self._updates) not in self._step_ends and len({len(array) for array in arrays}) == 1:
            rows = (b"".join(np.asarray(array).tobytes() for array in row) for row in zip(*arrays, strict=True))
            self._batches[len(self._updates)] = [hashlib.blake2b(row, digest_size=8).hexdigest() for row in rows]

    def end_step(self, model: int, *variables: np.ndarray) -> None:
        """Record the states of a model's metrics, and on the chief its other variables, at the end of a step.

        Raises:
            Finished: If this was the last step.
        """
        if len(self._updates) in self._step_ends:  # enough has been recorded
            return
        self._step_ends[len(self._updates)] = model
        states = sum(len(metric["aggregations"]) for metric in self._models[model]["metrics"])
        count = len(variables) if self._rank == 0 else states
        self._save(f"metrics-{len(self._updates)}-{self._rank}", variables[:count])
        self.end_if_complete()

    def sum(self, vector: np.ndarray) -> None:
        """Record what an `allreduce` has summed up.

        Raises:
            Finished: If this was the last that is compared.
        """
        if not self._updates and len(self._sums) < self._steps:
            self._sums.append(vector.copy())
            self.end_if_complete()

    def write(self) -> None:
        """Write what has not been written yet."""
        for number, vector in enumerate(self._sums if self._rank == 0 else [], start=1):
            self._save(f"sum-{number}", [vector])
        written = {
            "notes": self._notes,
            "optimizers": [self._optimizers[number] for number in sorted(self._optimizers)],
            "models": self._models,
            "updates": self._updates,
            "step_ends": self._step_ends,
            "batches": self._batches,
            "sums": len(self._sums),
        }
        with open(os.path.join(self._folder, f"rank-{self._rank}.json"), "w", encoding="utf-8") as file:
            json.dump(written, file)

    def _save(self, name: str, arrays: tuple[np.ndarray, ...] | list[np.ndarray]) -> None:
        wide = [array if array.dtype in (np.float32, np.float64) else array.astype("float64") for array in arrays]
        np.savez(os.path.join(self._folder, f"{name}.npz"), *wide)


def _bytes(array: np.ndarray) -> memoryview:
    """Return what an array consists of, also if Python does not know its dtype."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
