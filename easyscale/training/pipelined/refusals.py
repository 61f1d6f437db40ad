"""What a pipeline cannot train, each in one line and before the first step."""

from collections.abc import Iterator
from typing import Any

import keras

from easyscale import keras_internals
from easyscale.optimizer import DistributedOptimizer

__all__ = ["check"]

_STEPS = ("train_step", "compute_loss", "compute_metrics")


def check(model: keras.Model, pipelines: int) -> None:
    """Raise `ValueError` if pipelines cannot train a model that is compiled as this one.

    What can be seen of its layers only when they are called is refused then: see `Stage`.

    Args:
        model: The model.
        pipelines: Int. The number of pipelines side by side.
    """
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        raise ValueError("a pipeline trains a compiled model. Received: one that is not. Call `model.compile(...)`")
    for rule, received, remedy in [*_of_step(model), *_of_optimizer(optimizer, pipelines), *_of_layers(model)]:
        raise ValueError(f"{rule}. Received: {received}. {remedy}")


Refusal = tuple[str, str, str]  # the rule, what came, the remedy


def _of_step(model: keras.Model) -> Iterator[Refusal]:
    for name in _STEPS:
        if getattr(type(model), name) is not getattr(keras.Model, name):
            rule = f"a model that a pipeline trains must have Keras's `{name}`"
            yield rule, f"{type(model).__name__} with one of its own", "Train it without `model_parallel`"
    if getattr(model, "steps_per_execution", 1) != 1:
        rule = "a pipeline makes one step at a time"
        yield rule, f"steps_per_execution={model.steps_per_execution}", "Leave it out of `compile`"
    for loss in keras.tree.flatten(getattr(model, "loss", None)):
        reduction = getattr(loss, "reduction", "sum_over_batch_size")
        if reduction not in ("sum", "sum_over_batch_size", "mean"):
            rule = "a loss that a pipeline trains must be a sum, or a mean over samples"
            yield rule, f"reduction='{reduction}'", "Use 'sum_over_batch_size'"


def _of_optimizer(optimizer: keras.optimizers.Optimizer, pipelines: int) -> Iterator[Refusal]:
    what = f"{type(optimizer).__name__}"
    if isinstance(optimizer, DistributedOptimizer):
        rule = "a pipeline makes an optimizer for each stage"
        yield rule, f"a {what}", "Compile the model with its inner optimizer"
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        rule = "a pipeline does not scale losses"
        yield rule, f"a {what}", "Use the policy 'float32', or `compile(auto_scale_loss=False)`"
    if hasattr(optimizer, "optimizers"):
        yield "a pipeline trains by one optimizer", f"a {what} of several", "Compile the model with one of them"
    for name, remedy in (
        ("gradient_accumulation_steps", "Use larger batches, of more micro-batches"),
        ("use_ema", "Leave it out"),
    ):
        if getattr(optimizer, name, None):
            rule = f"a pipeline does not know `{name}` yet"
            yield rule, f"{what}({name}={getattr(optimizer, name)})", remedy
    if getattr(optimizer, "global_clipnorm", None) and pipelines > 1:
        rule = "gradients of several pipelines are not clipped by their global norm yet"
        received = f"{what}(global_clipnorm={optimizer.global_clipnorm}), {pipelines} pipelines"
        yield rule, received, "Clip each gradient by `clipnorm`, or start one pipeline"


def _of_layers(model: keras.Model) -> Iterator[Refusal]:
    for layer in keras_internals.layers_of(model):
        named = f"{type(layer).__name__} '{layer.name}'"
        if isinstance(layer, keras.layers.BatchNormalization) and layer.synchronized:
            rule = "batch normalization in a pipeline is that of each micro-batch by itself"
            yield rule, f"{named} with synchronized=True", "Leave `synchronized` out"
        if getattr(layer, "stateful", False):
            yield "a layer on a stage must forget the batch before", f"{named} that is stateful", "Make it stateless"
        policy: Any = getattr(layer, "dtype_policy", None)
        if policy is not None and policy.compute_dtype != policy.variable_dtype:
            rule = "a pipeline computes in the type of the weights"
            yield rule, f"{named} of policy '{policy.name}'", "Use the policy 'float32'"
