"""The data of a `fit()`, in the order in which NumPy's generator has Keras on JAX go through arrays."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from easyscale.keras_internals import (
    batch_by_batch,
    batches_of,
    end_epoch,
    order_of_shuffling,
    replace_iterators,
    shuffled_by,
)
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
        self._number: int | None = None  # by which Keras shuffles the pass, from 3.16 on
        self._is_used = False

    def __next__(self) -> Any:
        self._is_used = True
        return self._next()

    def _next(self) -> Any:
        if self._state is None:
            self._state, self._number = get_numpy_state(), order_of_shuffling(self._epoch_iterator)
        return next(self._batches)

    def peek(self) -> Any:
        """Return the batch that comes next, and comes again."""
        batch = self._next()
        self._batches = itertools.chain([batch], self._batches)
        return batch

    def end_epoch(self) -> None:
        """End the epoch that is under way: no step of it has data."""
        end_epoch(self._epoch_iterator)

    def order(self) -> Any:
        """Return the state of NumPy's generator by which the pass began, with Keras's number; `None` if it has not."""
        return self._state if self._state is None or self._number is None else [self._state, self._number]

    def go_on(self, order: Any) -> None:
        """Begin as a pass of another process did, of which `order` is; `None` if it had not begun."""
        if self._is_used or self._comes_once:
            return
        self._batches, self._state = iter(self._begin()), None  # a look at a batch has drawn an order
        if order is None:
            return
        state, number = order if len(order) == 2 else (order, None)  # before Keras 3.16 it is the state alone
        own = get_numpy_state()
        try:
            with shuffled_by(self._epoch_iterator, number):
                set_numpy_state(state)
                first = self._next()
        finally:
            set_numpy_state(own)
        self._batches = itertools.chain([first], self._batches)


def give_iterators(epoch_iterator: Any) -> None:
    """Have each step get the `Batches` of the pass."""
    comes_once = batches_of(epoch_iterator) is None
    replace_iterators(
        epoch_iterator, lambda begin: Batches(epoch_iterator, lambda: batch_by_batch(begin()), comes_once)
    )
