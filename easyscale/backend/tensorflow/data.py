"""Batches and datasets: the order of a pass through them, and what `easyscale verify` asks of them."""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from easyscale.keras_internals import dataset_of_iterator, shuffles

__all__ = ["are_rows", "end_at_once", "go_on", "keep_in_order"]


def end_at_once(dataset: Any) -> Any:
    """Return the dataset, whose passes end without a wait.

    TensorFlow tunes a pass in a thread that looks at it after pauses of 10 ms, 20 ms, 40 ms and so on. In a process
    that is kept to one processor, as one of many is, who ends a pass waits for its next look, for as long again as the
    pass has taken. There is nothing to tune for one processor, so a dataset is not, unless its `tf.data.Options` say.
    """
    is_alone = len(os.sched_getaffinity(0)) == 1
    if not is_alone or not isinstance(dataset, tf.data.Dataset) or dataset.options().autotune.enabled is not None:
        return dataset
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def go_on(iterator: Iterator, passes: int) -> Iterator | None:
    """Return the iterator after `passes` more of the same dataset, if that is another than the first.

    A seeded shuffle comes to the order that it had by as many iterators as there had been.
    """
    dataset = dataset_of_iterator(iterator)
    if dataset is None or passes < 1 or not shuffles(dataset):
        return None
    for _ in range(passes):
        later = iter(dataset)
    return later


def are_rows(tensors: Sequence[Any]) -> bool:
    """Return whether all of these are tensors of numbers, with a row for each sample."""
    return bool(tensors) and all(
        isinstance(tensor, tf.Tensor) and tensor.shape.rank and tensor.dtype != tf.string for tensor in tensors
    )


def keep_in_order(on_shuffle: Callable[[], None]) -> None:
    """From now on `tf.data.Dataset.shuffle` returns the dataset as it is, and calls `on_shuffle`."""

    def shuffle(dataset: tf.data.Dataset, *arguments: Any, **options: Any) -> tf.data.Dataset:
        on_shuffle()
        return dataset

    tf.data.Dataset.shuffle = shuffle
