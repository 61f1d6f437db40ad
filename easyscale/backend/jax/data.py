"""The data of a `fit()`, in the order in which NumPy's generator has Keras on JAX go through arrays."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from easyscale.keras_internals import batches_of, end_epoch, replace_iterators
from easyscale.step.random_state import get_numpy_state, set_numpy_state

__all__ = ["Batches", "give_iterators"]


class Batches(Iterator):
    """The batches of one pass through the data, which draws its order when the first batch is taken.

    Args:
        epoch_iterator: What goes through the data of the `fit()`.
        begin: Function. Returns what a pass goes through.
        comes_once: Bool. Whether there is only one pass, as through a generator.
    """

    def __init__(self, epoch_iterator: Any, begin: Callable[[], Iterable], comes_once: bool):
        self._epoch_iterator, self._begin, self._comes_once = epoch_iterator, begin, comes_once
        self._batches: Iterator = iter(begin())
        self._state: list | None = None  # of NumPy's generator when the pass began
        self._is_used = False

    def __next__(self) -> Any:
        self._is_used = True
        return self._next()

    def _next(self) -> Any:
        if self._state is None:
            self._state = get_numpy_state()
        return next(self._batches)

    def peek(self) -> Any:
        """Return the batch that comes next, and comes again."""
        batch = self._next()
        self._batches = itertools.chain([batch], self._batches)
        return batch

    def end_epoch(self) -> None:
        """End the epoch that is under way: no step of it has data."""
        end_epoch(self._epoch_iterator)

    def order(self) -> list | None:
        """Return the state of NumPy's generator by which the pass began; `None` if it has not."""
        return self._state

    def go_on(self, order: Sequence[Any] | None) -> None:
        """Begin as a pass of another process did, of which `order` is; `None` if it had not begun."""
        if self._is_used or self._comes_once:
            return
        self._batches, self._state = iter(self._begin()), None  # a look at a batch has drawn an order
        if order is None:
            return
        own = get_numpy_state()
        try:
            set_numpy_state(order)
            first = self._next()
        finally:
            set_numpy_state(own)
        self._batches = itertools.chain([first], self._batches)


def give_iterators(epoch_iterator: Any) -> None:
    """Have each step get the `Batches` of the pass."""
    comes_once = batches_of(epoch_iterator) is None
    replace_iterators(epoch_iterator, lambda begin: Batches(epoch_iterator, begin, comes_once))
