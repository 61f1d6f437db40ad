"""Batches and datasets: what `easyscale verify` asks of them."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

__all__ = ["are_rows", "keep_in_order"]


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
