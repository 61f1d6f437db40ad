"""A step of a model, in which optimizers, losses and layers know what the batch is to all workers."""

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import keras

from easyscale.optimizer import DistributedOptimizer
from easyscale.step.interfaces import StepContext
from easyscale.training.current_step import step_of
from easyscale.training.parts import batch_normalization, finite_losses

__all__ = ["run_alone", "run_step"]


def run_step(
    step: Callable[[Any], Any], data: Any, model: keras.Model, optimizers: Sequence[DistributedOptimizer]
) -> Any:
    """Return `step(data)`, where `step` is the model's own `train_step` or `test_step`."""
    workers, tensors = optimizers[0].workers, keras.tree.flatten(data)
    samples = workers.batch.count_samples(tensors)
    known, moving = workers.batch.beginnings(tensors), batch_normalization.moving_statistics(model)
    with contextlib.ExitStack() as steps:
        for optimizer in optimizers:
            is_scaled = isinstance(optimizer.inner_optimizer, keras.optimizers.LossScaleOptimizer)
            watches = not (is_scaled or optimizer.workers.replicas.has_copies)
            totals = finite_losses.totals(model) if watches else ()
            steps.enter_context(optimizer.workers.current_step.of(StepContext(samples, known, moving, totals)))
        steps.enter_context(step_of(workers.batch))
        return workers.replicas.run(step, data, samples, model)


def run_alone(
    step: Callable[[Any], Any], data: Any, model: keras.Model, optimizers: Sequence[DistributedOptimizer]
) -> Any:
    """Return `step(data)` outside of a `fit()`, where nothing is known of the others' batches: all count the same."""
    moving = batch_normalization.moving_statistics(model)
    with contextlib.ExitStack() as steps:
        for optimizer in optimizers:
            current = optimizer.workers.current_step
            steps.enter_context(current.of(dataclasses.replace(current.context, moving=moving)))
        return step(data)
