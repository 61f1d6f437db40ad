"""One step of a model, in which optimizers, losses and layers account for the batches of all workers."""

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import keras

from easyscale.optimizer import DistributedOptimizer
from easyscale.step.context import StepContext
from easyscale.step.whole_batch import OwnBatch
from easyscale.training.current_step import step_of
from easyscale.training.parts import assigned, finite_losses, losses

__all__ = ["run_alone", "run_step"]


def run_step(
    step: Callable[[Any], Any],
    data: Any,
    model: keras.Model,
    optimizers: Sequence[DistributedOptimizer],
    is_alone: bool = False,
    exchanges: bool = True,
) -> Any:
    """Return `step(data)`, where `step` is the model's own `train_step` or `test_step`.

    With `is_alone` the step is outside of a `fit()`, where each replica of a process has its whole batch. Without
    `exchanges` the other workers do not take part in this step, and its batch stands for theirs.
    """
    replication, tensors = optimizers[0].workers, keras.tree.flatten(data)
    batch = replication.batch if exchanges else OwnBatch(replication.batch, replication.communicator.workers)
    samples = batch.count_samples(tensors)
    known, moving = batch.beginnings(tensors), assigned.assigned_in_steps(model)
    came = replication.steps.note_batch(known, exchanges)
    with contextlib.ExitStack() as steps:
        for optimizer in optimizers:
            is_scaled = isinstance(optimizer.inner_optimizer, keras.optimizers.LossScaleOptimizer)
            watches = not (is_scaled or optimizer.workers.replicas.has_copies)
            totals = finite_losses.totals(model) if watches else ()
            late = optimizer.late if _reads_no_new_weights(step, model, optimizers) else None
            if late is not None:
                late.receive()
            weight = optimizer.workers.replicas.weight_alone(samples) if is_alone else samples
            context = StepContext(weight, known, moving, totals, late, came=came, as_made=_is_stock(step))
            steps.enter_context(optimizer.workers.current_step.of(context))
            steps.callback(optimizer.workers.gradients.early.expect_none)
        steps.enter_context(step_of(batch, losses.may_choose_elements(model)))
        return replication.replicas.run(step, data, samples, model)


def _is_stock(step: Callable[[Any], Any]) -> bool:
    """Return whether a step is Keras's own training step."""
    return getattr(step, "__func__", None) is keras.Model.train_step


def _reads_no_new_weights(
    step: Callable[[Any], Any], model: keras.Model, optimizers: Sequence[DistributedOptimizer]
) -> bool:
    """Return whether a step reads no weight after its update, so that new ones may arrive while the next one begins.

    Keras's own step reads none. A custom step may, for example to clip weights or to update a second model.
    """
    computes_stock = getattr(model.compute_metrics, "__func__", None) is keras.Model.compute_metrics
    is_one_graph = not (model.run_eagerly or optimizers[0].workers.replicas.has_copies)
    return _is_stock(step) and computes_stock and is_one_graph and len(optimizers) == 1


def run_alone(
    step: Callable[..., Any], data: Sequence[Any], model: keras.Model, optimizers: Sequence[DistributedOptimizer]
) -> Any:
    """Return `step(*data)` outside of a `fit()`, where the others' batches are unknown: all have equal weight."""
    moving = assigned.assigned_in_steps(model)
    with contextlib.ExitStack() as steps:
        for optimizer in optimizers:
            current = optimizer.workers.current_step
            steps.enter_context(current.of(dataclasses.replace(current.context, moving=moving)))
        return step(*data)
