"""What Keras has no public name for in what goes through the data of a `fit()`: its `epoch_iterator`."""

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
    """Let what goes through the data of an epoch ask for so many batches, from the next epoch on."""
    epoch_iterator._num_batches = count


def batches_of(epoch_iterator: Any) -> int | None:
    """Return how many batches the data have, or `None` if that is not known."""
    return epoch_iterator._num_batches


def has_ended(epoch_iterator: Any) -> bool:
    """Return whether the data have ended in the last epoch: the next one begins with the first batch."""
    return epoch_iterator._current_iterator is None or epoch_iterator._steps_seen == 0


def steps_of_pass(epoch_iterator: Any) -> int:
    """Return the steps through the data since their begin, with those that are about to be made."""
    return epoch_iterator._steps_seen


def add_steps_of_pass(epoch_iterator: Any, count: int) -> None:
    """Let what goes through the data of an epoch know of so many steps more since the begin of the data."""
    epoch_iterator._steps_seen += count


def dataset_of(epoch_iterator: Any) -> Any:
    """Return the `tf.data.Dataset` of what goes through the data of an epoch, or `None`."""
    return getattr(epoch_iterator, "_distributed_dataset", None)


def replace_iterators(epoch_iterator: Any, replace: Callable[[Callable[[], Any]], Iterator]) -> None:
    """Let each pass through the data take what `replace(begin)` returns; `begin()` returns what it would go through."""
    original = epoch_iterator._get_iterator
    epoch_iterator._get_iterator = lambda: replace(original)


def replace_datasets(replace: Callable[[Any], Any]) -> None:
    """On TensorFlow, let each pass through the data of a model go through what `replace(dataset)` returns."""
    owner: Any = importlib.import_module("keras.src.backend.tensorflow.trainer").TFEpochIterator
    original = owner._get_iterator
    owner._get_iterator = lambda epoch_iterator: replace(original(epoch_iterator))


class _Pass(Iterator):
    """A pass through the data on JAX, which gives what Keras's steps take, or batches, as its first user asks.

    Args:
        begin: Function. `begin(count)` returns an iterator over stacks of `count` batches, or over batches if it is 1.
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
        """Return this iterator, which gives batches if nothing has been taken of it."""
        if self._iterator is None:
            self._count = 1
        return self


def unstack_batches() -> None:
    """On JAX, let `batch_by_batch` take single batches where Keras gives a step a stack of several.

    From Keras 3.16 on it does so with `steps_per_execution`, for steps that it compiles into a loop.
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
    """Return an iterator over single batches, for what Keras gives a step on JAX."""
    return iterator.batch_by_batch() if isinstance(iterator, _Pass) else iterator


def order_of_shuffling(epoch_iterator: Any) -> int | None:
    """Return the number by which Keras shuffles the pass that is under way, or the next one.

    Before Keras 3.16 there is none: generators of random numbers say the order.
    """
    return getattr(epoch_iterator.data_adapter, "_epoch", None)


def set_order_of_shuffling(epoch_iterator: Any, order: int) -> None:
    """Let the next pass through the data have the order of the pass of another process, and those behind it theirs."""
    if order_of_shuffling(epoch_iterator) is not None:
        epoch_iterator.data_adapter._epoch = order


@contextlib.contextmanager
def shuffled_by(epoch_iterator: Any, order: int | None) -> Iterator[None]:
    """Inside, a pass through the data that begins is shuffled by a number; by Keras's own if that is `None`."""
    before = order_of_shuffling(epoch_iterator)
    if order is not None:
        set_order_of_shuffling(epoch_iterator, order)
    try:
        yield
    finally:
        if before is not None:
            set_order_of_shuffling(epoch_iterator, before)


def another_iterator(epoch_iterator: Any, model: "keras.Model", **data: Any) -> Any:
    """Return what goes through other data as the `epoch_iterator` of a model's `fit()` does its own; see there."""
    strategy = getattr(model, "distribute_strategy", None)  # on TensorFlow
    return type(epoch_iterator)(**data, **({} if strategy is None else {"distribute_strategy": strategy}))


def begin_pass(epoch_iterator: Any) -> Iterator:
    """Return an iterator over what one more pass through the data gives the steps."""
    return iter(epoch_iterator._get_iterator())


def end_epoch(epoch_iterator: Any) -> None:
    """End the epoch that is under way as one whose data have run out: there is no step more."""
    with epoch_iterator.catch_stop_iteration():
        raise StopIteration
    epoch_iterator._epoch_iterator = iter(())
