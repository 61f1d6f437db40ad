"""Batches and datasets: the order of a pass through them, and queries by `easyscale verify`."""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from easyscale.keras_internals import dataset_of_iterator, shuffles

__all__ = ["are_rows", "end_at_once", "go_on", "keep_in_order"]


def end_at_once(dataset: Any) -> Any:
    """Return the dataset, without autotuning if this process is pinned to one core, so that passes end without a wait.

    TensorFlow tunes a pass in a thread that wakes up after pauses of 10 ms, 20 ms, 40 ms and so on. On a single core,
    as is usual with one process of many, the end of a pass waits for its next wake-up: as long again as the pass has
    taken. There is nothing to tune for one core. A dataset whose `tf.data.Options` set autotuning is left as it is.
    """
    is_alone = len(os.sched_getaffinity(0)) == 1
    if not is_alone or not isinstance(dataset, tf.data.Dataset) or dataset.options().autotune.enabled is not None:
        return dataset
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def go_on(iterator: Iterator, passes: int) -> Iterator | None:
    """Return the iterator after `passes` more over the same dataset; `None` if every pass has the same order.

    A seeded shuffle reaches the order of a pass only after as many iterators as there were before it.
    """
    dataset = dataset_of_iterator(iterator)
    if dataset is None or passes < 1 or not shuffles(dataset):
        return None
    for _ in range(passes):
        later = iter(dataset)
    return later


def are_rows(tensors: Sequence[Any]) -> bool:
    """Return whether all of these are tensors of numbers with one row per sample."""
    return bool(tensors) and all(
        isinstance(tensor, tf.Tensor) and tensor.shape.rank and tensor.dtype != tf.string for tensor in tensors
    )


def keep_in_order(on_shuffle: Callable[[], None]) -> None:
    """Make `tf.data.Dataset.shuffle` return the dataset unchanged and call `on_shuffle`."""

    def shuffle(dataset: tf.data.Dataset, *arguments: Any, **options: Any) -> tf.data.Dataset:
        on_shuffle()
        return dataset

    tf.data.Dataset.shuffle = shuffle
