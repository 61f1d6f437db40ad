"""What Keras has no public name for in what goes through the data of a `fit()`: its `epoch_iterator`."""

import importlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from easyscale.keras_internals.names import Names

if TYPE_CHECKING:
    import keras

__all__ = [
    "add_steps_of_pass",
    "another_iterator",
    "batches_of",
    "begin_pass",
    "dataset_of",
    "end_epoch",
    "has_ended",
    "replace_datasets",
    "replace_iterators",
    "set_batches",
    "steps_of_pass",
]

NAMES: Names = {
    ("keras.src.trainers.epoch_iterator", "EpochIterator"): (
        "_current_iterator",
        "_epoch_iterator",
        "_get_iterator",
        "_num_batches",
        "_steps_seen",
        "catch_stop_iteration",
    ),
}

# The same of what Keras has on TensorFlow only.
NAMES_ON_TENSORFLOW: Names = {
    ("keras.src.backend.tensorflow.trainer", "TFEpochIterator"): ("_distributed_dataset", "_get_iterator")
}


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
