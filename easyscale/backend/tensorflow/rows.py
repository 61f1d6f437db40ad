"""Gradients that may be row-sparse: `tf.IndexedSlices`."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from easyscale.layout.shards import length_of
from easyscale.step.context import Gradient

__all__ = ["elements_of", "scaled", "sums_of_squares"]


def elements_of(rows: tf.IndexedSlices, part: slice) -> tf.IndexedSlices:
    """Return the elements that are in a part of the flat variable, as rows of one element."""
    width = tf.size(rows.values, tf.int64) // tf.maximum(tf.size(rows.indices, tf.int64), 1)
    indices = tf.cast(rows.indices, tf.int64)  # int32 after a lookup with int32 numbers
    positions = tf.reshape(indices[:, None] * width + tf.range(width)[None], [-1])
    inside = (positions >= part.start) & (positions < part.stop)
    values = tf.boolean_mask(tf.reshape(rows.values, [-1]), inside)
    return tf.IndexedSlices(
        values, tf.boolean_mask(positions, inside) - part.start, tf.constant(length_of(part), tf.int64)
    )


def scaled(gradient: Gradient, factor: Any) -> Gradient:
    """Return a gradient times a number; a row-sparse one stays row-sparse, even if rows occur several times."""
    factor = tf.cast(factor, gradient.dtype)
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values * factor, gradient.indices, gradient.dense_shape)
    return gradient * factor


def sums_of_squares(gradients: Sequence[Gradient]) -> tf.Tensor:
    """Return the sum of the squares of each gradient. Float64."""
    return tf.stack(
        [tf.reduce_sum(tf.square(tf.cast(getattr(gradient, "values", gradient), tf.float64))) for gradient in gradients]
    )
