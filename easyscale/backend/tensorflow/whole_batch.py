"""Numbers that depend on the batches of all workers: totals, moments, counts."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from easyscale.communicator import Communicator
from easyscale.step import statistics
from easyscale.step.current_step import CurrentStep
from easyscale.step.interfaces import StepContext, WholeBatch
from easyscale.step.shared import Shared

__all__ = ["BatchOfWorkers"]

_FLOAT64 = np.dtype("float64")
_COMPARED = 4096  # elements of a tensor, by which batches are known to be the same


class BatchOfWorkers(WholeBatch):
    """The batches of all workers together, which layers and losses may ask for inside a step.

    Args:
        communicator: The `Communicator`.
        shared: Its `Shared`.
        step: `CurrentStep`. Its weight is the number of samples of this worker's batch.
    """

    def __init__(self, communicator: Communicator, shared: Shared, step: CurrentStep):
        self._communicator, self._shared, self._step = communicator, shared, step

    @property
    def size(self) -> int:
        return self._communicator.size

    @property
    def context(self) -> StepContext:
        return self._step.context

    def graph(self) -> tf.Graph | None:
        return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()

    @tf.autograph.experimental.do_not_convert
    def total(self, vector: tf.Tensor) -> tf.Tensor:
        if self._communicator.size == 1:
            return vector
        inputs = [tf.cast(vector, tf.float64)]
        results = [(vector.shape, _FLOAT64)]
        (total,) = self._shared.call(lambda local: [self._shared.gather_rows(local).sum(axis=0)], inputs, results)
        return tf.cast(total, vector.dtype)

    @tf.autograph.experimental.do_not_convert
    def moments(self, mean: tf.Tensor, variance: tf.Tensor, count: Any) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        count = tf.cast(count, tf.float64)
        if self._communicator.size == 1:
            return mean, variance, tf.cast(count, mean.dtype)
        weight = tf.cast(self._step.context.weight, mean.dtype)

        @tf.custom_gradient
        def united(mean: tf.Tensor, variance: tf.Tensor) -> tuple[tuple[tf.Tensor, ...], Callable]:
            rows = [tf.reshape(tf.cast(one, tf.float64), [-1]) for one in (count, mean, variance)]
            results = self._shared.call(
                lambda row: statistics.unite(self._shared.gather_rows(row)),
                [tf.concat(rows, 0)],
                [(mean.shape, _FLOAT64), (mean.shape, _FLOAT64), ((), _FLOAT64)],
            )
            joint_mean, joint_variance, all_data = (tf.cast(one, mean.dtype) for one in results)
            share = tf.cast(tf.math.divide_no_nan(count, results[2]), mean.dtype)

            def gradient(by_mean: tf.Tensor, by_variance: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
                # The loss is the workers' mean by samples, and each worker's batch moves everybody's moments.
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
            one for one in tensors if isinstance(one, tf.Tensor) and (one.dtype.is_floating or one.dtype.is_integer)
        ]
        return [tf.reshape(one, [-1])[:_COMPARED] for one in numbers]
