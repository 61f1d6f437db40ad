"""Where in its data a rank is: how many iterators it has seen, and how many batches it has taken from the last one."""

from collections.abc import Iterator, Mapping
from typing import Any

from easyscale.keras_internals import dataset_of_iterator, inputs_of
from easyscale.training.parts.data_pass import DataPass
from easyscale.training.stateful import State

__all__ = ["DataPosition"]


class DataPosition:
    """Counts batches, and finds the position again.

    Keras begins a resumed run with a new iterator. If the dataset is shuffled anew in each epoch, as many iterators are
    made as there had been, so that a seeded shuffle comes to the order that it had. Then the batches that were taken
    are taken again, and dropped.

    Args:
        batch: Dict. What `whole_batches.local_batch` has returned. Defaults to `None`: it is not known.
        data_pass: `DataPass`. Defaults to `None`: each epoch goes through all data.
    """

    def __init__(self, batch: Mapping[str, int] | None = None, data_pass: DataPass | None = None) -> None:
        self.batch, self._pass = dict(batch or {}), data_pass
        self._iterators = self._batches = self._calls = 0  # calls: executions in this epoch
        self._goal: dict[str, int] | None = None  # until this is there again
        self._skipped = 0
        self._seen: Iterator | None = None
        self._instead: Iterator | None = None

    def state(self) -> State:
        """Return the position."""
        return State(
            {"iterators": self._iterators, "batches": self._batches, "calls": self._calls, "batch": self.batch}
        )

    def load(self, state: State) -> None:
        """Find this position again, from the begin.

        Args:
            state: What `state` has returned, with `steps`: the batches of the worker that had most.
        """
        self._goal = {name: state.about[name] for name in ("iterators", "batches", "calls", "steps")}

    def begin_epoch(self) -> None:
        """Take in that an epoch begins."""
        self._calls = 0

    def end(self) -> None:
        """Take in that a `fit()` ends: a longer one goes on in the next epoch."""
        self._calls = 0
        if self._pass is None or self._pass.is_over:
            self._iterators, self._batches = self._iterators + 1, 0

    def follow(self, iterator: Iterator) -> Iterator:
        """Return the iterator to take data from: `iterator`, or what has to stand in for it."""
        if iterator is not self._seen:
            self._seen, self._instead = iterator, None
            self._iterators, self._batches = self._iterators + 1, 0
            if self._goal is not None and self._iterators == 1:
                self._iterators = self._goal["iterators"]
                self._instead = _later(iterator, self._goal["iterators"] - 1)
        return iterator if self._instead is None else self._instead

    def is_behind(self, count: int) -> bool:
        """Return whether the next execution, of so many batches, had been made before."""
        goal = self._goal
        if goal is None or self._calls >= goal["calls"]:
            return False
        return self._batches + count <= goal["batches"]  # executions may have been shorter

    def skip(self, iterator: Iterator, count: int) -> bool:
        """Drop the batches of one execution that had been made before; return whether there was one.

        Raises:
            StopIteration: If the data ends.
        """
        goal = self._goal
        if goal is None:
            return False
        if self._calls == 0 and self._pass is not None:
            self._pass.go_on(goal["steps"] - goal["calls"] * count)
        if not self.is_behind(count):
            self._drop(iterator, goal["batches"] - self._batches)
            self._goal = None
            return False
        if self._calls == 0:  # of earlier epochs, where one iterator serves several
            self._drop(iterator, goal["batches"] - goal["calls"] * count)
        self._drop(iterator, count)
        self._calls += 1
        return True

    @property
    def calls(self) -> int:
        """How many executions of this epoch there have been."""
        return self._calls

    @property
    def missing(self) -> int:
        """How many executions are still to be skipped in this epoch."""
        goal = self._goal
        if goal is None or self._batches >= goal["batches"]:
            return 0
        return max(goal["calls"] - self._calls, 0)

    def _drop(self, iterator: Iterator, count: int) -> None:
        for _ in range(count):
            next(iterator)
            self._batches += 1

    def count(self, batches: int) -> None:
        """Take in that so many batches were taken, in one execution."""
        self._batches += batches
        self._calls += 1


def _later(iterator: Iterator, count: int) -> Iterator | None:
    """Return the iterator after `count` more of the same dataset, if that is another than the first."""
    dataset = dataset_of_iterator(iterator)
    if dataset is None or count < 1 or not _shuffles(dataset):
        return None
    for _ in range(count):
        later = iter(dataset)
    return later


def _shuffles(dataset: Any) -> bool:
    """Whether a dataset of tf.data has an order that depends on how often it has been gone through."""
    return "Shuffle" in type(dataset).__name__ or any(map(_shuffles, inputs_of(dataset)))
