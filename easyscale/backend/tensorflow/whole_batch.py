"""Numbers that depend on the batches of all workers: totals, moments, counts."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from easyscale.step import statistics
from easyscale.step.whole_batch import COMPARED, BatchOfProcesses

__all__ = ["BatchOfWorkers"]

_FLOAT64 = np.dtype("float64")


class BatchOfWorkers(BatchOfProcesses):
    """The batches of all workers together. See `BatchOfProcesses`."""

    def graph(self) -> tf.Graph | None:
        return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()

    @tf.autograph.experimental.do_not_convert
    def total(self, vector: tf.Tensor, fingerprint: tf.Tensor | None = None) -> tf.Tensor:
        if self._communicator.size == 1:
            return vector
        if fingerprint is not None:
            fingerprint = tf.cast(fingerprint, tf.float64)
        return tf.cast(self._sum(tf.cast(vector, tf.float64), fingerprint), vector.dtype)

    @tf.autograph.experimental.do_not_convert
    def moments(self, mean: tf.Tensor, variance: tf.Tensor, count: Any) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        count = tf.cast(count, tf.float64)
        if self._communicator.size == 1:
            return mean, variance, tf.cast(count, mean.dtype)
        weight = tf.cast(self._step.context.weight, mean.dtype)

        @tf.custom_gradient
        def united(mean: tf.Tensor, variance: tf.Tensor) -> tuple[tuple[tf.Tensor, ...], Callable]:
            rows = [tf.reshape(tf.cast(moment, tf.float64), [-1]) for moment in (count, mean, variance)]
            results = self._shared.call(
                lambda row: statistics.unite(self._shared.gather_rows(row)),
                [tf.concat(rows, 0)],
                [(mean.shape, _FLOAT64), (mean.shape, _FLOAT64), ((), _FLOAT64)],
            )
            joint_mean, joint_variance, all_data = (tf.cast(result, mean.dtype) for result in results)
            share = tf.cast(tf.math.divide_no_nan(count, results[2]), mean.dtype)

            def gradient(by_mean: tf.Tensor, by_variance: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
                # The loss is the workers' sample-weighted mean, and each worker's batch affects the moments of all.
                sums = self.total(tf.concat([by_mean, by_variance], 0) * weight) * (share / weight)
                by_mean, by_variance = tf.split(sums, 2)
                return by_mean + 2 * (mean - joint_mean) * by_variance, by_variance

            return (joint_mean, joint_variance, all_data), gradient

        return united(mean, variance)

    def count_samples(self, tensors: Sequence[Any]) -> tf.Tensor | float:
        for tensor in tensors:
            if isinstance(tensor, tf.RaggedTensor):
                return tensor.nrows()
            if isinstance(tensor, tf.SparseTensor):
                return tensor.dense_shape[0]
            if tensor is not None and len(tensor.shape):
                return tf.shape(tensor)[0]
        return 1.0

    def beginnings(self, tensors: Sequence[Any]) -> list[tf.Tensor]:
        numbers = [
            tensor
            for tensor in tensors
            if isinstance(tensor, tf.Tensor) and (tensor.dtype.is_floating or tensor.dtype.is_integer)
        ]
        return [tf.reshape(tensor, [-1])[:COMPARED] for tensor in numbers]
