"""Models and options that a pipeline cannot train, each refused in one line before the first step."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras

from easyscale import compression, keras_internals
from easyscale.optimizer import DistributedOptimizer
from easyscale.training.keras_fit import is_overridden
from easyscale.training.parts.assigned import spectral_normalizations
from easyscale.update.accumulated import unscaled

__all__ = ["check", "check_deferred", "check_form"]

_STEPS = ("train_step", "compute_loss", "compute_metrics")


def check(model: keras.Model, microbatches: int) -> None:
    """Raise `ValueError` if pipelines cannot train a model that is compiled like this one.

    Problems that show only when its layers are called are refused then: see `Stage`.

    Args:
        model: The model.
        microbatches: Int. The number of micro-batches in a batch.
    """
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        raise ValueError("a pipeline trains a compiled model. Received: one that is not. Call `model.compile(...)`")
    of_layers = [*_of_layers(model), *_of_kernels(model, microbatches), *_of_masks(model)]
    for rule, received, remedy in [*_of_step(model), *_of_optimizer(optimizer), *of_layers]:
        raise ValueError(f"{rule}. Received: {received}. {remedy}")


def check_deferred(model: keras.Model, callbacks: Sequence[keras.callbacks.Callback], has_checkpoints: bool) -> None:
    """Raise `ValueError` if a `fit()` of a model that was built in a scope needs weights of other stages.

    Args:
        model: The model.
        callbacks: List of this rank's callbacks.
        has_checkpoints: Bool. Whether `Distribute` writes checkpoints, or resumes from one.
    """
    outside = "build the model outside of `scope()`"
    for callback in callbacks:
        if getattr(callback, "histogram_freq", 0):
            raise ValueError(
                f"a histogram needs all weights on the chief. Received: {type(callback).__name__}(histogram_freq="
                f"{callback.histogram_freq}) with a model that was built in `scope()`. Leave it out, or {outside}"
            )
        if isinstance(callback, keras.callbacks.SwapEMAWeights):
            raise ValueError(
                "a callback that puts averages in the place of weights needs all of them. Received: SwapEMAWeights "
                f"with a model that was built in `scope()`. Leave it out, or {outside}"
            )
        if has_checkpoints and getattr(callback, "restore_best_weights", False):
            raise ValueError(
                "a checkpoint has what the chief's callbacks remember, and the best weights of a stage are on its "
                f"rank. Received: {type(callback).__name__}(restore_best_weights=True) and `checkpoint`, or --resume, "
                "with a model that was built in `scope()`. Use `keras.callbacks.ModelCheckpoint(save_best_only=True)`, "
                f"or {outside}"
            )


def check_form(options: Mapping[str, Any], has_checkpoints: bool) -> None:
    """Raise `ValueError` if checkpoints would lack the residuals of a compression.

    Args:
        options: Dict. Arguments of `DistributedOptimizer`.
        has_checkpoints: Bool. Whether `Distribute` writes checkpoints, or resumes from one.
    """
    form = compression.asked(options.get("compression"))
    if has_checkpoints and isinstance(form, compression.Compression) and form.keeps_error:
        raise ValueError(
            "checkpoints of pipelines have no residuals yet. Received: "
            f"compression={form.name!r} and `checkpoint`, or --resume. Use a form that keeps no error, such as 'int8', "
            "or leave `checkpoint` out"
        )


Refusal = tuple[str, str, str]  # the rule, what was received, the remedy


def _of_step(model: keras.Model) -> Iterator[Refusal]:
    for name in _STEPS:
        if is_overridden(model, name):
            rule = f"a model that a pipeline trains must have Keras's `{name}`"
            yield rule, f"{type(model).__name__} with one of its own", "Train it without `model_parallel`"
    if getattr(model, "steps_per_execution", 1) != 1:
        rule = "a pipeline makes one step at a time"
        yield rule, f"steps_per_execution={model.steps_per_execution}", "Leave it out of `compile`"


def _of_optimizer(optimizer: keras.optimizers.Optimizer) -> Iterator[Refusal]:
    what = type(optimizer).__name__
    if isinstance(optimizer, DistributedOptimizer):
        rule = "a pipeline makes an optimizer for each stage"
        yield rule, f"a {what}", "Compile the model with its inner optimizer"
    if hasattr(optimizer, "optimizers"):
        yield "a pipeline trains by one optimizer", f"a {what} of several", "Compile the model with one of them"
    inner = unscaled(optimizer)
    if inner.gradient_accumulation_steps and (inner is not optimizer or inner.global_clipnorm):
        rule = "a pipeline does not clip by a global norm, or scale, gradients that are summed up over steps"
        received = f"a {what} with gradient_accumulation_steps={inner.gradient_accumulation_steps}"
        yield rule, received, "Use larger batches, of more micro-batches"


def _of_layers(model: keras.Model) -> Iterator[Refusal]:
    for layer in keras_internals.layers_of(model):
        named = f"{type(layer).__name__} '{layer.name}'"
        if isinstance(layer, keras.layers.BatchNormalization) and layer.synchronized:
            rule = "batch normalization in a pipeline is that of each micro-batch by itself"
            yield rule, f"{named} with synchronized=True", "Leave `synchronized` out"
        if getattr(layer, "stateful", False):
            yield "a layer on a stage must forget the batch before", f"{named} that is stateful", "Make it stateless"


def _of_kernels(model: keras.Model, microbatches: int) -> Iterator[Refusal]:
    for layer in spectral_normalizations(model) if microbatches > 1 else ():
        rule = "a layer on a stage must have the same weights for all micro-batches of a step"
        received = f"SpectralNormalization '{layer.name}', which divides them in each; microbatches={microbatches}"
        yield rule, received, "Use `Pipeline(microbatches=1)`, or train it without `model_parallel`"


def _of_masks(model: keras.Model) -> Iterator[Refusal]:
    graph = keras_internals.graph_of(model)
    masks = [mask for mask in graph.masks if mask is not None] if graph is not None else []
    for node in keras_internals.calls_between(graph.inputs, masks) if graph is not None and masks else ():
        if getattr(node.operation, "variables", None):
            rule = "the mask of a model's output must follow from its inputs alone in a pipeline"
            remedy = "Give `fit()` the weights of what counts as `sample_weight`"
            yield rule, f"one behind layer '{node.operation.name}'", remedy
