"""Numbers that depend on the batches of all replicas of all processes: totals and moments."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from easyscale.backend.tensorflow.in_graph import strategy as strategies
from easyscale.backend.tensorflow.internals import outside
from easyscale.backend.tensorflow.whole_batch import BatchOfWorkers
from easyscale.communicator import Communicator
from easyscale.step.context import CurrentStep
from easyscale.step.shared import Shared

__all__ = ["BatchOfReplicas"]


class BatchOfReplicas(BatchOfWorkers):
    """The batches of all replicas together, on the devices of this process and of the others.

    Args:
        communicator: The `Communicator`.
        shared: Its `Shared`.
        step: `CurrentStep`. See `BatchOfWorkers`.
        strategy: The `Replicas` of this process.
    """

    def __init__(self, communicator: Communicator, shared: Shared, step: CurrentStep, strategy: strategies.Replicas):
        super().__init__(communicator, shared, step)
        self._strategy = strategy

    @property
    def size(self) -> int:
        return self._communicator.workers * self._strategy.num_replicas_in_sync

    @tf.autograph.experimental.do_not_convert
    def total(self, vector: tf.Tensor, fingerprint: tf.Tensor | None = None) -> tf.Tensor:
        replica = self._strategy.replica
        if replica is None:
            return super().total(vector, fingerprint)
        numbers = tf.cast(vector, tf.float64)
        if fingerprint is not None:
            numbers = tf.concat([numbers, [tf.cast(fingerprint, tf.float64)]], 0)

        def merged(_: tf.distribute.Strategy, vectors: Any) -> tf.Tensor:
            total = tf.add_n(self._strategy.experimental_local_results(vectors))
            with outside():
                if fingerprint is None:
                    return super(BatchOfReplicas, self).total(total)
                return super(BatchOfReplicas, self).total(total[:-1], total[-1])

        return tf.cast(replica.merge_call(merged, args=(numbers,)), vector.dtype)

    @tf.autograph.experimental.do_not_convert
    def moments(self, mean: tf.Tensor, variance: tf.Tensor, count: Any) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        if self._strategy.replica is None:
            return super().moments(mean, variance, count)
        weight = tf.cast(self._step.context.weight, mean.dtype)
        wide = tf.where(weight > 0, tf.cast(count, tf.float64), 0)

        @tf.custom_gradient
        def united(mean: tf.Tensor, variance: tf.Tensor) -> tuple[tuple[tf.Tensor, ...], Callable]:
            means, variances = tf.cast(mean, tf.float64), tf.cast(variance, tf.float64)
            sums = self.total(tf.concat([[wide], wide * means], 0))
            all_data, joint_mean = sums[0], sums[1:] / sums[0]
            joint_variance = self.total(wide * (variances + tf.square(means - joint_mean))) / all_data
            joint_mean, joint_variance = tf.cast(joint_mean, mean.dtype), tf.cast(joint_variance, mean.dtype)
            share = tf.cast(wide / all_data, mean.dtype)

            def gradient(by_mean: tf.Tensor, by_variance: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
                # The loss is the workers' sample-weighted mean, and each worker's batch affects the moments of all.
                sums = self.total(tf.math.multiply_no_nan(tf.concat([by_mean, by_variance], 0), weight))
                by_mean, by_variance = tf.split(sums * tf.math.divide_no_nan(share, weight), 2)
                return by_mean + 2 * (mean - joint_mean) * by_variance, by_variance

            return (joint_mean, joint_variance, tf.cast(all_data, mean.dtype)), gradient

        return united(mean, variance)
