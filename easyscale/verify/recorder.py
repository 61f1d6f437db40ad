"""Files that record a rank's first steps: `easyscale verify` compares those of one process and of several.

rank-1.json         from every rank: its records, and a digest of each weight after each update
weights-4.npz       from the chief: the trained variables after the fourth update, by any optimizer
metrics-4-1.npz     from every rank: the states of the metrics at that time; on the chief also other variables
sum-4.npz           from the chief: the result of the fourth `allreduce`, if nothing is trained
"""

import hashlib
import json
import os
import sys

import numpy as np

__all__ = ["FITS", "Finished", "Recorder"]

FITS = 3  # number of `fit()`s to record


class Finished(Exception):
    """Raised to end the script after all that is compared has been recorded."""


class Recorder:
    """Records the first steps of a rank, then ends its script.

    Args:
        folder: String. The folder for the files.
        rank: Int. This process's rank.
        steps: Int. How many steps of each `fit()` to record; with several optimizers, the average for each.

    Attributes:
        has_finished: Bool. Whether `Finished` has been raised.
    """

    def __init__(self, folder: str, rank: int, steps: int):
        self._folder, self._rank, self._steps = folder, rank, steps
        self._notes: dict[str, list[str]] = {"switched_off": [], "random": [], "unsynchronized": [], "failed": []}
        self.has_finished = self._was_complete = False
        self._is_full = False  # enough of this `fit()` had been recorded at the end of a step
        self._fit = 0  # the number of the running `fit()`; 0 outside of one
        self._fits = 0  # number of `fit()`s that have trained something
        self._first = 0  # number of updates before this `fit()`; outside of one, before now
        self._batches: dict[int, list[str]] = {}  # number of updates -> a digest of each sample
        self._optimizers: dict[int, dict] = {}
        self._models: list[dict] = []
        self._updates: list[dict] = []
        self._step_ends: dict[int, int] = {}  # number of updates -> number of the model
        self._sums: list[np.ndarray] = []

    def begin_fit(self) -> None:
        """Start recording the first steps of a `fit()`."""
        self._fit, self._first, self._is_full = self._fits + 1, len(self._updates), False

    def end_fit(self) -> None:
        """Called at the end of a `fit()`."""
        self._was_complete = self.complete
        self._fits += len(self._updates) > self._first
        self._fit, self._first, self._is_full = 0, len(self._updates), False

    @property
    def complete(self) -> bool:
        """True if enough of at least one `fit()`, or of a custom training loop, has been recorded."""
        return self._was_complete or self.has_enough

    @property
    def has_enough(self) -> bool:
        """True if enough of the current `fit()` or loop has been recorded. All ranks reach this at the same point."""
        if self._updates:
            own = self._updates[self._first :]
            return bool(own) and len(own) >= self._steps * len({update["optimizer"] for update in own})
        return len(self._sums) >= self._steps and "keras" not in sys.modules  # with Keras, training may follow

    def end_if_complete(self) -> None:
        """Raise `Finished` if everything has been recorded. In a `fit()` before the last one, the script goes on."""
        self._is_full = self.has_enough
        if self.has_enough and not 0 < self._fit < FITS:
            sys.stderr.flush()
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # TensorFlow would log it as an error
            self.has_finished = True
            raise Finished

    # Facts that all processes have in common

    def note(self, kind: str, name: str) -> None:
        """Record a name, once.

        Args:
            kind: `"switched_off"`; `"random"`, which cannot be switched off; `"unsynchronized"` batch normalizations;
                `"failed"`, the error that ended the script after enough had been recorded.
            name: String.
        """
        if name not in self._notes[kind]:
            self._notes[kind].append(name)

    def describe_optimizer(self, number: int, name: str, weights: list[str]) -> None:
        """Describe the weights that `update(number, ...)` receives."""
        self._optimizers[number] = {"name": name, "weights": weights}

    def describe_model(self, metrics: list[dict], states: list[str]) -> int:
        """Describe a model's metrics and other variables for `end_step`; return the number to pass to it."""
        description = {"metrics": metrics, "states": states}
        if description not in self._models:
            self._models.append(description)
        return self._models.index(description)

    # Values that are compared

    def update(self, optimizer: int, *weights: np.ndarray) -> None:
        """Record the weights that an optimizer trains, after an update."""
        if self._is_full and self._fit:
            return
        digests = [hashlib.blake2b(_bytes(weight), digest_size=8).hexdigest() for weight in weights]
        self._updates.append({"optimizer": optimizer, "digests": digests, "fit": self._fit})
        self._sums.clear()
        if self._rank == 0:
            self._save(f"weights-{len(self._updates)}", weights)

    def batch(self, *arrays: np.ndarray) -> None:
        """Record this rank's samples in a step, before `end_step`; each array has a row for each sample."""
        if len(self._updates) not in self._step_ends and len({len(array) for array in arrays}) == 1:
            rows = (b"".join(np.asarray(array).tobytes() for array in row) for row in zip(*arrays, strict=True))
            self._batches[len(self._updates)] = [hashlib.blake2b(row, digest_size=8).hexdigest() for row in rows]

    def end_step(self, model: int, *variables: np.ndarray) -> None:
        """Record the states of a model's metrics, and on the chief its other variables, at the end of a step.

        Raises:
            Finished: If this was the last step.
        """
        if len(self._updates) in self._step_ends:  # no update since: enough has been recorded
            return
        self._step_ends[len(self._updates)] = model
        states = sum(len(metric["aggregations"]) for metric in self._models[model]["metrics"])
        count = len(variables) if self._rank == 0 else states
        self._save(f"metrics-{len(self._updates)}-{self._rank}", variables[:count])
        self.end_if_complete()

    def sum(self, vector: np.ndarray) -> None:
        """Record the result of an `allreduce`.

        Raises:
            Finished: If this was the last to be compared.
        """
        if not self._updates and len(self._sums) < self._steps:
            self._sums.append(vector.copy())
            self.end_if_complete()

    def write(self) -> None:
        """Write all records that have not been written yet."""
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
    """Return the bytes of an array, also if its dtype does not support the buffer protocol."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
