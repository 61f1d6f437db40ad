"""The data of a `fit()`. Keras on JAX goes through arrays in an order drawn from NumPy's generator."""

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
    """The batches of one pass through the data. The order is drawn when the first batch is taken.

    Args:
        epoch_iterator: Keras's iterator over the epochs of the `fit()`.
        begin: Function. Returns the iterable of a pass.
        comes_once: Bool. Whether only one pass is possible, as through a generator.
    """

    def __init__(self, epoch_iterator: Any, begin: Callable[[], Iterable], comes_once: bool):
        self._epoch_iterator, self._begin, self._comes_once = epoch_iterator, begin, comes_once
        self._batches: Iterator = iter(begin())
        self._state: list | None = None  # of NumPy's generator at the start of the pass
        self._number: int | None = None  # Keras's number of the pass, which determines its order, since 3.16
        self._is_used = False

    def __next__(self) -> Any:
        self._is_used = True
        return self._next()

    def _next(self) -> Any:
        if self._state is None:
            self._state, self._number = get_numpy_state(), order_of_shuffling(self._epoch_iterator)
        return next(self._batches)

    def peek(self) -> Any:
        """Return the next batch without consuming it."""
        batch = self._next()
        self._batches = itertools.chain([batch], self._batches)
        return batch

    def end_epoch(self) -> None:
        """End the current epoch: no step of it has data."""
        end_epoch(self._epoch_iterator)

    def order(self) -> Any:
        """Return the state of NumPy's generator at the start of the pass, with Keras's number; `None` before it."""
        return self._state if self._state is None or self._number is None else [self._state, self._number]

    def go_on(self, order: Any) -> None:
        """Start as a pass of another process did, given its `order`; `None` if that pass had not started."""
        if self._is_used or self._comes_once:
            return
        self._batches, self._state = iter(self._begin()), None  # `peek` has drawn an order
        if order is None:
            return
        state, number = order if len(order) == 2 else (order, None)  # before Keras 3.16, just the state
        own = get_numpy_state()
        try:
            with shuffled_by(self._epoch_iterator, number):
                set_numpy_state(state)
                first = self._next()
        finally:
            set_numpy_state(own)
        self._batches = itertools.chain([first], self._batches)


def give_iterators(epoch_iterator: Any) -> None:
    """Have each step receive the `Batches` of the pass."""
    comes_once = batches_of(epoch_iterator) is None
    replace_iterators(
        epoch_iterator, lambda begin: Batches(epoch_iterator, lambda: batch_by_batch(begin()), comes_once)
    )
