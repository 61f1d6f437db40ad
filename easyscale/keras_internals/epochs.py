"""Private names of Keras's `EpochIterator`, which iterates over the data of a `fit()`."""

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import keras

__all__ = [
    "add_steps_of_pass",
    "another_iterator",
    "batch_by_batch",
    "batches_of",
    "begin_pass",
    "dataset_of",
    "end_epoch",
    "has_ended",
    "order_of_shuffling",
    "replace_datasets",
    "replace_iterators",
    "set_batches",
    "set_order_of_shuffling",
    "shuffled_by",
    "steps_of_pass",
    "unstack_batches",
]


def set_batches(epoch_iterator: Any, count: int) -> None:
    """Set the number of batches that an epoch asks for, from the next epoch on."""
    epoch_iterator._num_batches = count


def batches_of(epoch_iterator: Any) -> int | None:
    """Return the number of batches of the data, or `None` if it is not known."""
    return epoch_iterator._num_batches


def has_ended(epoch_iterator: Any) -> bool:
    """Return whether the data ended in the last epoch, so that the next one starts with the first batch."""
    return epoch_iterator._current_iterator is None or epoch_iterator._steps_seen == 0


def steps_of_pass(epoch_iterator: Any) -> int:
    """Return the number of steps since the start of the data, including those about to be made."""
    return epoch_iterator._steps_seen


def add_steps_of_pass(epoch_iterator: Any, count: int) -> None:
    """Add to the number of steps since the start of the data."""
    epoch_iterator._steps_seen += count


def dataset_of(epoch_iterator: Any) -> Any:
    """Return the `tf.data.Dataset` that is iterated over, or `None`."""
    return getattr(epoch_iterator, "_distributed_dataset", None)


def replace_iterators(epoch_iterator: Any, replace: Callable[[Callable[[], Any]], Iterator]) -> None:
    """Make each pass iterate over the result of `replace(begin)`; `begin()` returns the original iterable."""
    original = epoch_iterator._get_iterator
    epoch_iterator._get_iterator = lambda: replace(original)


def replace_datasets(replace: Callable[[Any], Any]) -> None:
    """On TensorFlow, make each pass of any model iterate over the result of `replace(dataset)`."""
    owner: Any = importlib.import_module("keras.src.backend.tensorflow.trainer").TFEpochIterator
    original = owner._get_iterator
    owner._get_iterator = lambda epoch_iterator: replace(original(epoch_iterator))


class _Pass(Iterator):
    """A pass through the data on JAX: over stacks of batches, as Keras's steps take them, or over single batches.

    Args:
        begin: Function. `begin(count)` returns an iterable of stacks of `count` batches, or of batches if it is 1.
        count: Int. `steps_per_execution`.
    """

    def __init__(self, begin: Callable[[int], Any], count: int):
        self._begin, self._count = begin, count
        self._iterator: Iterator | None = None

    def __next__(self) -> Any:
        if self._iterator is None:
            self._iterator = iter(self._begin(self._count))
        return next(self._iterator)

    def batch_by_batch(self) -> Iterator:
        """Return this iterator, switched to single batches unless it has already started."""
        if self._iterator is None:
            self._count = 1
        return self


def unstack_batches() -> None:
    """On JAX, let `batch_by_batch` return single batches where Keras passes stacks of several to a step.

    From 3.16 on, Keras stacks batches if `steps_per_execution` is above 1, for steps that it compiles into a loop.
    """
    owner: Any = importlib.import_module("keras.src.backend.jax.trainer").JAXEpochIterator
    original = owner._get_iterator

    def get_iterator(epoch_iterator: Any) -> Any:
        count = epoch_iterator.steps_per_execution
        if count == 1:
            return original(epoch_iterator)

        def begin(steps: int) -> Any:
            epoch_iterator.steps_per_execution = steps
            try:
                return original(epoch_iterator)
            finally:
                epoch_iterator.steps_per_execution = count

        return _Pass(begin, count)

    owner._get_iterator = get_iterator


def batch_by_batch(iterator: Iterator) -> Iterator:
    """Return an iterator over single batches, given the one that Keras passes to a step on JAX."""
    return iterator.batch_by_batch() if isinstance(iterator, _Pass) else iterator


def order_of_shuffling(epoch_iterator: Any) -> int | None:
    """Return the number that determines how Keras shuffles the current pass, or the next one.

    `None` before Keras 3.16, where random number generators determine the order.
    """
    return getattr(epoch_iterator.data_adapter, "_epoch", None)


def set_order_of_shuffling(epoch_iterator: Any, order: int) -> None:
    """Set the shuffling number of the next pass, from another process's pass; later passes count on from it."""
    if order_of_shuffling(epoch_iterator) is not None:
        epoch_iterator.data_adapter._epoch = order


@contextlib.contextmanager
def shuffled_by(epoch_iterator: Any, order: int | None) -> Iterator[None]:
    """Return a context in which a new pass is shuffled by the number `order`; by Keras's own if that is `None`."""
    before = order_of_shuffling(epoch_iterator)
    if order is not None:
        set_order_of_shuffling(epoch_iterator, order)
    try:
        yield
    finally:
        if before is not None:
            set_order_of_shuffling(epoch_iterator, before)


def another_iterator(epoch_iterator: Any, model: "keras.Model", **data: Any) -> Any:
    """Return an iterator over other data, like the `epoch_iterator` of a model's `fit()` and with its arguments."""
    strategy = getattr(model, "distribute_strategy", None)  # on TensorFlow
    return type(epoch_iterator)(**data, **({} if strategy is None else {"distribute_strategy": strategy}))


def begin_pass(epoch_iterator: Any) -> Iterator:
    """Start another pass through the data; return an iterator over the inputs of its steps."""
    return iter(epoch_iterator._get_iterator())


def end_epoch(epoch_iterator: Any) -> None:
    """End the current epoch as if its data had run out: it makes no more steps."""
    with epoch_iterator.catch_stop_iteration():
        raise StopIteration
    epoch_iterator._epoch_iterator = iter(())
