"""Gradients that may be row-sparse: `tf.IndexedSlices`."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from easyscale.layout.shards import length_of
from easyscale.step.context import Gradient

__all__ = ["elements_of", "scaled", "sums_of_squares", "whole_if_fixed"]


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


def whole_if_fixed(gradient: Gradient) -> Gradient:
    """Return a gradient, as a dense tensor if it is row-sparse and its rows do not depend on the batch.

    One process then has each row once, with the sum over the batch, as of a position embedding. Several workers would
    have it once each, and many optimizers take another step for such rows than for their sum.
    """
    if not isinstance(gradient, tf.IndexedSlices) or gradient.indices.shape[0] == 0:  # a worker without data has none
        return gradient
    if _depends_on_batch(gradient.indices):
        return gradient
    indices = tf.get_static_value(gradient.indices)
    if indices is not None and len(np.unique(indices)) < len(indices):  # one process has some rows several times
        return gradient
    return tf.convert_to_tensor(gradient)


_SHAPES = ("Shape", "ShapeN", "Size", "Rank")  # operations that do not read the values of their inputs


def _depends_on_batch(tensor: tf.Tensor) -> bool:
    """Return whether a tensor is computed from data or from random numbers; `True` outside of a graph."""
    left: list[tf.Tensor] = [tensor]
    seen: set[tf.Operation] = set()
    while left:
        tensor = left.pop()
        if tf.is_tensor(tensor) and not tf.is_symbolic_tensor(tensor):
            if len(seen) == 0:
                return True  # the gradient itself: there is no graph
            continue  # a constant of an enclosing program
        operation = tensor.op
        if operation in seen or operation.type in _SHAPES:
            seen.add(operation)
            continue
        seen.add(operation)
        if "Iterator" in operation.type or "Random" in operation.type:
            return True
        if operation.type == "Placeholder":
            captured = [outer for outer, inner in operation.graph.captures if inner is tensor]
            if not captured:
                return True  # an argument, as the data of a step are
            left += captured
        left += list(operation.inputs)
    return False
