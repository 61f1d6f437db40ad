"""A rank's position in its data: the number of iterators so far, and of batches taken from the last one."""

from collections.abc import Iterator, Mapping
from typing import Any

from easyscale import backend as backends
from easyscale.errors import EasyScaleError
from easyscale.training.parts.data_pass import DataPass
from easyscale.training.stateful import State

__all__ = ["DataPosition"]


class DataPosition:
    """Counts batches, and seeks to a saved position.

    Keras starts a resumed run with a new iterator. It receives the order of the one that was interrupted, by
    `Backend.go_on`. Then the batches that had been taken are taken again, and dropped.

    Args:
        batch: Dict. The result of `whole_batches.local_batch`. Defaults to `None`: it is not known.
        data_pass: `DataPass`. Defaults to `None`: each epoch goes through all data.
    """

    def __init__(self, batch: Mapping[str, int] | None = None, data_pass: DataPass | None = None) -> None:
        self.batch, self._pass = dict(batch or {}), data_pass
        self._iterators = self._batches = self._calls = 0  # calls: executions in this epoch
        self._goal: dict[str, int] | None = None  # the position to seek, until it is reached
        self._order: Any = None  # the order of the pass with that position
        self._seen: Iterator | None = None
        self._instead: Iterator | None = None

    def state(self) -> State:
        """Return the position."""
        counts: dict[str, Any] = {
            "iterators": self._iterators,
            "batches": self._batches,
            "calls": self._calls,
            "batch": self.batch,
        }
        if self._pass is not None and self._pass.order is not None:
            counts["shuffling"] = self._pass.order
        backend = backends.get()
        order = None if self._seen is None else backend.order_of(self._seen)
        return State(counts if order is None else counts | {"order": {backend.name: order}})

    def load(self, state: State) -> None:
        """Seek to this position, from the start of the data.

        Args:
            state: The result of `state`, with `steps`: the number of batches of the worker that had most.
        """
        self._goal = {name: state.about[name] for name in ("iterators", "batches", "calls", "steps")}
        self._order = state.about.get("order", {}).get(backends.get().name)
        if self._pass is not None and "shuffling" in state.about:
            self._pass.set_order(int(state.about["shuffling"]))

    def begin_epoch(self) -> None:
        """Start an epoch."""
        self._calls = 0

    def end(self) -> None:
        """Record the end of a `fit()`: a longer one resumes in the next epoch."""
        self._calls = 0
        if self._pass is None or self._pass.is_over:
            self._iterators, self._batches, self._seen = self._iterators + 1, 0, None

    def follow(self, iterator: Iterator) -> Iterator:
        """Return the iterator to take data from: `iterator` or its replacement.

        Raises:
            EasyScaleError: If the data cannot have the order that a checkpoint specifies.
        """
        if iterator is not self._seen:
            self._seen, self._instead = iterator, None
            self._iterators, self._batches = self._iterators + 1, 0
            if self._goal is not None and self._iterators == 1:
                self._iterators = self._goal["iterators"]
                try:
                    self._instead = backends.get().go_on(iterator, self._goal["iterators"] - 1, self._order)
                except (RuntimeError, TypeError, ValueError) as error:
                    raise EasyScaleError(
                        "a checkpoint must be one that EasyScale has written. Received: one whose data cannot have "
                        f"the order that they had ({' '.join(str(error).split())[:300]}). Use another folder"
                    ) from error
        return iterator if self._instead is None else self._instead

    def is_behind(self, count: int) -> bool:
        """Return whether the next execution, of `count` batches, was made before the checkpoint."""
        goal = self._goal
        if goal is None or self._calls >= goal["calls"]:
            return False
        return self._batches + count <= goal["batches"]  # executions may have been shorter

    def skip(self, iterator: Iterator, count: int) -> bool:
        """Drop the batches of one execution made before the checkpoint; return whether there was one.

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
        if self._calls == 0:  # batches of earlier epochs, if one iterator serves several
            self._drop(iterator, goal["batches"] - goal["calls"] * count)
        self._drop(iterator, count)
        self._calls += 1
        return True

    @property
    def calls(self) -> int:
        """The number of executions so far in this epoch."""
        return self._calls

    @property
    def missing(self) -> int:
        """The number of executions still to be skipped in this epoch."""
        goal = self._goal
        if goal is None or self._batches >= goal["batches"]:
            return 0
        return max(goal["calls"] - self._calls, 0)

    def _drop(self, iterator: Iterator, count: int) -> None:
        for _ in range(count):
            next(iterator)
            self._batches += 1

    def count(self, batches: int) -> None:
        """Count batches that were taken in one execution."""
        self._batches += batches
        self._calls += 1
