"""Tensor operations of a step in TensorFlow, on dense and row-sparse gradients."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from easyscale.backend.base import Tensors
from easyscale.backend.tensorflow.rows import elements_of
from easyscale.layout.specs import Spec
from easyscale.step.context import Gradient

__all__ = ["TensorsOfGraphs"]


class TensorsOfGraphs(Tensors):
    """Operations on gradients in a graph: tensors are symbolic until it runs."""

    def whole(self, value: Any) -> tf.Tensor:
        return tf.convert_to_tensor(value)

    def dtype_of(self, tensor: Gradient) -> np.dtype:
        return np.dtype(tensor.dtype.as_numpy_dtype)

    def zeros(self, spec: Spec) -> tf.Tensor:
        return tf.zeros(*spec)

    def part_of(self, gradient: Gradient, part: slice) -> Gradient:
        if gradient is None:
            return None
        if self.is_rows(gradient):
            return elements_of(gradient, part)
        return tf.reshape(gradient, [-1])[part]

    def nan_unless_finite(self, weight: Any, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(tensor)) for tensor in tensors])
        return tf.where(finite, tf.cast(weight, tf.float64), np.nan)

    def if_true(self, condition: tf.Tensor, act: Callable[[], None]) -> None:
        tf.cond(condition, act, lambda: None)

    def is_rows(self, gradient: Gradient) -> bool:
        return isinstance(gradient, tf.IndexedSlices)

    def values_and_indices(self, rows: tf.IndexedSlices) -> tuple[tf.Tensor, tf.Tensor]:
        return rows.values, tf.cast(rows.indices, tf.int64)

    def rows(self, values: tf.Tensor, indices: tf.Tensor, shape: Sequence[int]) -> tf.IndexedSlices:
        return tf.IndexedSlices(values, indices, tf.constant(shape, tf.int64))

    def no_rows(self, spec: Spec) -> tf.IndexedSlices:
        return self.rows(tf.zeros((0, *spec.shape[1:]), spec.dtype), tf.zeros(0, tf.int64), spec.shape)
