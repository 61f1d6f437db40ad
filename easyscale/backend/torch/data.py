"""The data of a `fit()`: iterators over batches for steps, where Keras would pass a batch; and the order of batches."""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, Sampler

from easyscale.keras_internals import end_epoch, order_of_shuffling, replace_iterators, shuffled_by, shuffles

__all__ = ["Batches", "are_rows", "by_iterator", "give_iterators", "iterator_of", "keep_in_order"]


class Batches(Iterator):
    """The batches of one pass through the data, taken by the steps themselves.

    So a step can start before its batch is there: a checkpoint is written between two batches, and a worker without
    data left waits for the others. Shuffled data draw their order when the first batch is taken.

    Args:
        epoch_iterator: Keras's iterator over the epochs of the `fit()`.
        loader: The iterable of one pass, such as a `torch.utils.data.DataLoader`.
    """

    def __init__(self, epoch_iterator: Any, loader: Any):
        self._epoch_iterator, self._loader = epoch_iterator, loader
        self._iterator: Iterator | None = None
        self._state: torch.Tensor | None = None  # of PyTorch's generator at the start of the pass
        self._number: int | None = None  # Keras's number of the pass, which determines its order, since 3.16

    def __next__(self) -> Any:
        if self._iterator is None:
            self._number = order_of_shuffling(self._epoch_iterator)
            self._state, self._iterator = torch.get_rng_state(), iter(self._loader)
        return next(self._iterator)

    def peek(self) -> Any:
        """Return the next batch without consuming it or, as far as the generator shows, drawing random numbers."""
        state, had_begun = torch.get_rng_state(), self._iterator is not None
        try:
            batch = next(self)
        finally:
            torch.set_rng_state(state)
        comes_once = isinstance(getattr(self._loader, "dataset", None), IterableDataset)
        if self._iterator is not None and (had_begun or comes_once):
            self._iterator = itertools.chain([batch], self._iterator)
        else:
            self._iterator = self._state = None
        return batch

    def end_epoch(self) -> None:
        """End the current epoch: no step of it has data."""
        end_epoch(self._epoch_iterator)

    def order(self) -> list | None:
        """Return the state of PyTorch's generator at the start of the pass, with Keras's number; `None` before it."""
        if self._state is None:
            return None
        return self._state.tolist() if self._number is None else [self._state.tolist(), self._number]

    def go_on(self, passes: int, order: Any) -> None:
        """Start as a pass of another process did, given its `order` and the number of `passes` before it."""
        dataset: Any = getattr(getattr(self._loader, "dataset", None), "iterable", None)  # `tf.data`, wrapped by Keras
        if passes and shuffles(dataset):
            for _ in range(passes - (self._iterator is not None)):  # `peek` has started a pass as well
                iter(dataset)
            self._iterator = None
        if order is not None and self._iterator is None:
            state, self._number = order if len(order) == 2 else (order, None)  # before Keras 3.16, just the state
            own, self._state = torch.get_rng_state(), torch.tensor(state, dtype=torch.uint8)
            try:
                with shuffled_by(self._epoch_iterator, self._number):
                    torch.set_rng_state(self._state)
                    begun = iter(self._loader)
                    self._iterator = itertools.chain([*itertools.islice(begun, 1)], begun)
            finally:
                torch.set_rng_state(own)


def give_iterators(epoch_iterator: Any) -> None:
    """Have Keras pass each step the `Batches` of the pass in a list, in place of the batch."""
    replace_iterators(epoch_iterator, lambda begin: itertools.repeat(Batches(epoch_iterator, begin())))


def iterator_of(given: Sequence[Any]) -> Iterator:
    """Return the `Batches` in a step's argument; for a step on a single batch, an iterator over that."""
    return given[0] if isinstance(given[0], Batches) else iter(given)


def by_iterator(train_function: Callable[[list], Any], steps_per_execution: int) -> Callable[[Iterator], Any]:
    """Turn Keras's function of a list of batches, which steps on each, into a function of an iterator."""

    def steps(iterator: Iterator) -> Any:
        first = next(iterator)
        return train_function([first, *itertools.islice(iterator, steps_per_execution - 1)])

    return steps


def are_rows(tensors: Sequence[Any]) -> bool:
    """Return whether all of these are tensors with one row per sample."""
    return bool(tensors) and all(isinstance(tensor, torch.Tensor) and tensor.ndim for tensor in tensors)


def keep_in_order(on_shuffle: Callable[[], None]) -> None:
    """Make a `DataLoader` that would shuffle its data take them in order, and call `on_shuffle`."""
    begin: Any = DataLoader.__init__

    @functools.wraps(begin)
    def begin_in_order(
        loader: DataLoader,
        dataset: Dataset,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler | Iterable | None = None,
        *arguments: Any,
        **options: Any,
    ) -> None:
        if shuffle or isinstance(sampler, RandomSampler):
            on_shuffle()
            shuffle, sampler = False, None
        begin(loader, dataset, batch_size, shuffle, sampler, *arguments, **options)

    type.__setattr__(DataLoader, "__init__", begin_in_order)
