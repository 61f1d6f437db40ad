"""Batch normalization over the batches of all workers."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from easyscale import keras_internals
from easyscale.communicator import Communicator
from easyscale.step.whole_batch import WholeBatch
from easyscale.training.current_step import workers_of_step
from easyscale.training.parts.metrics import average

__all__ = ["mean_statistics", "moves_statistics", "synchronize", "unsynchronized"]


def moves_statistics(layer: keras.layers.Layer) -> bool:
    """Return whether a layer is a batch normalization that updates its non-trainable variables in each step.

    Without `synchronized=True` each worker updates them from its own part of the batch, so they must be averaged.
    """
    return isinstance(layer, keras.layers.BatchNormalization) and layer.trainable and layer.built


def unsynchronized(model: keras.Model) -> list[str]:
    """Return the names of the layers that normalize over a worker's own part of the batch."""
    layers = [layer for layer in keras_internals.layers_of(model) if isinstance(layer, keras.layers.BatchNormalization)]
    return [layer.name for layer in layers if layer.trainable and not layer.synchronized]


def mean_statistics(model: keras.Model, communicator: Communicator) -> list[tuple[keras.Variable, np.ndarray]]:
    """Return the moving statistics, each with its mean over all workers. All workers must call this.

    They differ if servers do not wait for all workers.
    """
    moving = [variable for layer in _layers(model) for variable in layer.non_trainable_variables]
    means = average(moving, communicator)
    return [(variable, mean.astype(variable.dtype)) for variable, mean in zip(moving, means, strict=True)]


def synchronize(model: keras.Model) -> None:
    """Make every batch normalization with `synchronized=True` use the statistics of the global batch.

    That batch is looked up in each step, because the next `compile()`, or another model with the same layer, has other
    optimizers.
    """
    for layer in _layers(model):
        if layer.synchronized:
            keras_internals.replace_moments(layer, _moments)


def _layers(model: keras.layers.Layer) -> list[keras.layers.BatchNormalization]:
    return [layer for layer in keras_internals.layers_of(model) if moves_statistics(layer)]


def _moments(layer: keras.layers.BatchNormalization, original: Callable, inputs: Any, mask: Any) -> tuple[Any, Any]:
    workers = workers_of_step()
    if workers is None:
        return original(inputs, mask)
    layer.synchronized = False  # Keras's own synchronization looks for the replicas of one process
    try:
        mean, variance = original(inputs, mask)
    finally:
        layer.synchronized = True
    if mask is None:
        count = keras.ops.size(inputs) / keras.ops.size(mean)
        return workers.moments(mean, variance, count)[:2]
    return _masked_moments(workers, mean, variance, keras.ops.sum(keras.ops.cast(mask, mean.dtype)))


def _masked_moments(workers: WholeBatch, mean: Any, variance: Any, count: Any) -> tuple[Any, Any]:
    """Return Keras's moments of all workers' masked data, given Keras's moments of this worker's.

    Keras divides by the number of elements plus an epsilon, so its moments are off by up to one part in 10 million.
    """
    epsilon = keras.config.epsilon()
    own = keras.ops.divide_no_nan(count + epsilon, count)
    exact_mean = mean * own
    exact_variance = variance * own - keras.ops.square(exact_mean - mean)
    exact_mean, exact_variance, count = workers.moments(exact_mean, exact_variance, count)
    all_data = count / (count + epsilon)
    mean = exact_mean * all_data
    return mean, (exact_variance + keras.ops.square(exact_mean - mean)) * all_data
