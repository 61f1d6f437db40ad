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

__all__ = ["Finished", "Recorder"]


class Finished(Exception):
    """All that is compared has been recorded: the script need not go on."""


class Recorder:
    """Writes down the first steps of a rank, and ends its script after them.

    Args:
        folder: String. Where the files go.
        rank: Int. This rank's number.
        steps: Int. How many steps are recorded; of several optimizers, of each so many on average.
    """

    def __init__(self, folder: str, rank: int, steps: int):
        self._folder, self._rank, self._steps = folder, rank, steps
        self._notes: dict[str, list[str]] = {"switched_off": [], "random": [], "unsynchronized": []}
        self._optimizers: dict[int, dict] = {}
        self._models: list[dict] = []
        self._updates: list[dict] = []
        self._step_ends: dict[int, int] = {}  # number of updates -> number of the model
        self._sums: list[np.ndarray] = []

    @property
    def complete(self) -> bool:
        """Whether everything has been recorded. On all ranks it becomes so at the same place."""
        if self._updates:
            return len(self._updates) >= self._steps * len({update["optimizer"] for update in self._updates})
        return len(self._sums) >= self._steps and "keras" not in sys.modules  # with Keras, training may follow

    def end_if_complete(self) -> None:
        """Raise `Finished` if everything has been recorded."""
        if self.complete:
            sys.stderr.flush()
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # TensorFlow would tell of it as of an error
            raise Finished

    # What the processes have in common

    def note(self, kind: str, name: str) -> None:
        """Remember a name, once.

        Args:
            kind: `"switched_off"`; `"random"`, what could not be; `"unsynchronized"`, batch normalizations.
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
        digests = [hashlib.blake2b(np.ascontiguousarray(one), digest_size=8).hexdigest() for one in weights]
        self._updates.append({"optimizer": optimizer, "digests": digests})
        self._sums.clear()
        if self._rank == 0:
            self._save(f"weights-{len(self._updates)}", weights)

    def end_step(self, model: int, *variables: np.ndarray) -> None:
        """Record the states of a model's metrics, and on the chief its other variables, at the end of a step.

        Raises:
            Finished: If this was the last step.
        """
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
            "sums": len(self._sums),
        }
        with open(os.path.join(self._folder, f"rank-{self._rank}.json"), "w", encoding="utf-8") as file:
            json.dump(written, file)

    def _save(self, name: str, arrays: tuple[np.ndarray, ...] | list[np.ndarray]) -> None:
        wide = [one if one.dtype in (np.float32, np.float64) else one.astype("float64") for one in arrays]
        np.savez(os.path.join(self._folder, f"{name}.npz"), *wide)
