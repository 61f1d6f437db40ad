"""Reads the recordings of `recorder.py`: the first steps of a script on all ranks of a run."""

import collections
import json
import os

import numpy as np

from easyscale.errors import EasyScaleError

__all__ = ["Metric", "Recorded"]


class Metric:
    """A metric combined over all ranks.

    Args:
        name: String.
        states: List of arrays.
        is_mean: Bool. Whether the states are a total and a count.
    """

    def __init__(self, name: str, states: list[np.ndarray], is_mean: bool):
        self.name = name
        self.is_mean = is_mean and len(states) == 2
        self.states = states

    @property
    def count(self) -> float:
        """The count that a mean divides by; 0 for other metrics."""
        return float(self.states[1]) if self.is_mean else 0.0

    @property
    def values(self) -> np.ndarray:
        """The values to compare: the mean, or all states in one vector."""
        if self.is_mean:
            return np.reshape(self.states[0] / self.count if self.count else 0.0, -1)
        return np.concatenate([np.zeros(0), *(np.reshape(state, -1) for state in self.states)])


class Recorded:
    """The recordings of all ranks of one run.

    Args:
        folder: String. The folder of the recordings.
        ranks: Int. Number of ranks.

    Attributes:
        optimizers: List of dicts. The `name` of each optimizer, and the names of its `weights`.
        updates: List of ints. For each update, the index of its optimizer.
        sums: Int. Number of recorded results of `allreduce`.

    Raises:
        EasyScaleError: If a rank has written nothing.
    """

    def __init__(self, folder: str, ranks: int):
        self._folder = folder
        self._written = [self._read(rank) for rank in range(ranks)]
        self.ranks = ranks
        self.optimizers = self._written[0]["optimizers"]
        self.updates = [update["optimizer"] for update in self._written[0]["updates"]]
        self._fits = [update["fit"] for update in self._written[0]["updates"]]
        self.sums = self._written[0]["sums"]

    def _read(self, rank: int) -> dict:
        try:
            with open(os.path.join(self._folder, f"rank-{rank}.json"), encoding="utf-8") as file:
                return json.load(file)
        except FileNotFoundError:
            raise EasyScaleError(
                f"the script must end as Python scripts do. Received: no word from rank {rank} at its end. "
                "Leave `os._exit` out"
            ) from None

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to compare."""
        return not (self.updates or self.sums)

    @property
    def step_ends(self) -> list[int]:
        """The updates after which every rank has recorded its metrics."""
        return sorted(set.intersection(*({int(update) for update in record["step_ends"]} for record in self._written)))

    def notes(self, kind: str) -> list[str]:
        """Return the names that any rank has noted; see `Recorder.note`."""
        return list(dict.fromkeys(name for record in self._written for name in record["notes"][kind]))

    def step(self, update: int) -> str:
        """Describe the step of update number `update` in words."""
        optimizer, fit = self.updates[update - 1], self._fits[update - 1]
        own = [key for key in zip(self.updates, self._fits, strict=True) if key[1] == fit]
        of_several = f" of {self.optimizers[optimizer]['name']}" if len({key for key, _ in own}) > 1 else ""
        of_several += f" of fit() number {fit}" if fit > 1 else ""
        so_far = zip(self.updates[:update], self._fits[:update], strict=True)
        return f"step {sum(key == (optimizer, fit) for key in so_far)}{of_several}"

    @property
    def fits(self) -> int:
        """The number of `fit()`s."""
        return max([0, *self._fits])

    def batch(self, update: int) -> collections.Counter | None:
        """Return the samples of all ranks in the step that ends with this update; `None` if unknown."""
        known = [record["batches"][str(update)] for record in self._written if str(update) in record["batches"]]
        return collections.Counter(digest for digests in known for digest in digests) if known else None

    def weights(self, update: int) -> dict[str, np.ndarray]:
        """Return the weights after this update."""
        return dict(zip(self._names(update), self._load(f"weights-{update}"), strict=True))

    def unlike_the_chief(self, update: int) -> tuple[int, str] | None:
        """Return a rank and a weight that differs there from rank 0 after this update; `None` if none does."""
        chiefs = self._written[0]["updates"][update - 1]["digests"]
        for rank, record in enumerate(self._written):
            own = record["updates"][update - 1]["digests"] if update <= len(record["updates"]) else []
            for index, name in enumerate(self._names(update)):
                if own[index : index + 1] != chiefs[index : index + 1]:
                    return rank, name
        return None

    def metrics(self, update: int) -> list[Metric]:
        """Return the metrics combined over all ranks, at the end of the step of this update."""
        all_ranks = [self._load(f"metrics-{update}-{rank}") for rank in range(self.ranks)]
        metrics = []
        for metric in self._model(update)["metrics"]:
            count = len(metric["aggregations"])
            rows = [[arrays.pop(0) for _ in range(count)] for arrays in all_ranks]
            states = [_join(kind, parts) for kind, *parts in zip(metric["aggregations"], *rows, strict=True)]
            metrics.append(Metric(metric["name"], states, metric["is_mean"]))
        return metrics

    def other_variables(self, update: int) -> dict[str, np.ndarray]:
        """Return the model's other variables, e.g. moving statistics, at the end of that step."""
        model = self._model(update)
        first = sum(len(metric["aggregations"]) for metric in model["metrics"])
        return dict(zip(_distinct(model["states"]), self._load(f"metrics-{update}-0")[first:], strict=True))

    def sum(self, number: int) -> np.ndarray:
        """Return the result of an `allreduce`."""
        return self._load(f"sum-{number}")[0]

    def _names(self, update: int) -> list[str]:
        return _distinct(self.optimizers[self.updates[update - 1]]["weights"])

    def _model(self, update: int) -> dict:
        chief = self._written[0]
        return chief["models"][chief["step_ends"][str(update)]]

    def _load(self, name: str) -> list[np.ndarray]:
        with np.load(os.path.join(self._folder, f"{name}.npz")) as arrays:
            return [arrays[key] for key in arrays.files]


def _join(aggregation: str, states: list[np.ndarray]) -> np.ndarray:
    """Combine the states of all ranks into one."""
    if aggregation == "only_first_replica":
        return states[0]
    return np.mean(states, axis=0) if aggregation == "mean" else np.sum(states, axis=0, dtype="float64")


def _distinct(names: list[str]) -> list[str]:
    """Make equal names distinct by a number."""
    earlier = [names[:index].count(name) for index, name in enumerate(names)]
    return [f"{name} ({count + 1})" if count else name for name, count in zip(names, earlier, strict=True)]
