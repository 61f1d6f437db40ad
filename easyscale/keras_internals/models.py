"""What Keras and tf.data have no public name for in a model: layers and their graph; datasets, callbacks."""

import contextlib
import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from easyscale.keras_internals.masks import mask_of, masked_before
from easyscale.keras_internals.names import missing, release_of

if TYPE_CHECKING:
    import keras

__all__ = [
    "LOGS",
    "OF_FIT",
    "Graph",
    "added_losses",
    "batch_size_of",
    "build_compiled",
    "calls_between",
    "compiled_loss",
    "count_in_metrics",
    "dataset_of_iterator",
    "graph_of",
    "hold_losses",
    "improves",
    "initial_epoch",
    "inputs_of",
    "keeps_batches",
    "keeps_count",
    "last_batch_of",
    "layers_of",
    "leave_state_in",
    "replace_moments",
    "replace_validation_split",
    "require_datasets",
    "set_initial_epoch",
    "set_step",
    "shuffles",
    "standardized",
    "strategy_of",
    "with_training",
]

LOGS = "_get_metrics_result_or_logs"  # the method of a model through which logs go on their way to the callbacks
OF_FIT = "_use_cached_eval_dataset"  # the argument that `fit()` gives `evaluate()`, and nobody else does

_ARRAYS = "keras.src.trainers.data_adapters.array_slicing"  # where `fit()` splits arrays
_FUNCTIONAL = "keras.src.models.functional"

_KEEPING = ("CacheDataset", "_OptionsDataset", "_PrefetchDataset")  # steps of tf.data that leave batches as they are
_KEEPING_COUNT = (*_KEEPING, "_MapDataset", "_ParallelMapDataset")  # that have as many elements as their input


# A model in its fit()


def layers_of(model: "keras.layers.Layer", recursive: bool = True) -> list["keras.layers.Layer"]:
    """Return the layers of a model, and with `recursive` it itself and the layers in its layers.

    Its `layers` are these, if it is a `Model`; a layer that is a `Trainer` has none.
    """
    return list(model._flatten_layers(include_self=recursive, recursive=recursive))


def strategy_of(model: "keras.Model") -> Any:
    """Return the `tf.distribute.Strategy` in whose scope a model was built; `None` if it was in none."""
    return vars(model).get("_distribute_strategy")


def leave_state_in(model: "keras.Model") -> None:
    """Let Keras on JAX take a model for one whose variables have their values, and read them before its next step."""
    model._jax_state_synced = True


def count_in_metrics(
    model: "keras.Model", counted: list, loss: Any, batch: tuple[Any, Any, Any], y_pred: Any
) -> tuple[Any, list]:
    """Return the logs of a step on JAX, and what the variables of a model's metrics are then.

    Args:
        model: The model.
        counted: List of the values of the variables of its metrics.
        loss: The loss of the batch.
        batch: Its inputs, targets and weights.
        y_pred: What the model made of the inputs.
    """
    x, y, sample_weight = batch
    return model._update_metrics_variables(counted, loss, x, y, y_pred, sample_weight)


def initial_epoch(model: "keras.Model") -> int | None:
    """Return the epoch, from 0, that `fit()` begins with, whatever it was told; `None` if it was not set."""
    return model._initial_epoch


def set_initial_epoch(model: "keras.Model", epoch: int | None) -> None:
    """Let a `fit()` whose callbacks begin now, and each later one, begin with an epoch."""
    model._initial_epoch = epoch


# Layers


def replace_moments(layer: "keras.layers.BatchNormalization", replacement: Callable) -> None:
    """Let a layer call `replacement(layer, original, inputs, mask)` for the moments of a batch. Only once."""
    if "_moments" not in vars(layer):
        object.__setattr__(layer, "_moments", functools.partial(replacement, layer, layer._moments))


def hold_losses(model: "keras.Model", make: Callable[[], list]) -> None:
    """Let each layer of a model keep what it adds to the loss in a list that `make()` returns. Only once."""
    for layer in layers_of(model):
        if not type(layer._losses).__module__.startswith("easyscale."):
            object.__setattr__(layer, "_losses", make())


# The graph of layers of a model


class Graph(NamedTuple):
    """The layers of a Functional or Sequential model, as they are called.

    Attributes:
        model: The Functional model, which is also what a Sequential one has in it.
        nodes: List of Keras's nodes, each a call of a layer, behind all whose outputs it takes.
        inputs: List of `KerasTensor`, flat.
        outputs: Nested structure of `KerasTensor`.
        masks: List of the mask of each output, flat; `None` for one that has none when layers are called.
        masked: For each node, and behind the last one, the tensors that have a mask then, by identity.
    """

    model: "keras.Model"
    nodes: list[Any]
    inputs: list[Any]
    outputs: Any
    masks: list[Any]
    masked: list[set[int]]


def graph_of(model: "keras.Model") -> Graph | None:
    """Return the graph of a model; `None` of one that is neither Sequential nor Functional, or not built."""
    functional = importlib.import_module(_FUNCTIONAL).Functional
    if isinstance(model, importlib.import_module("keras").Sequential):
        model = model._functional
    if not isinstance(model, functional) or type(model).call is not functional.call:
        return None
    outputs = importlib.import_module("keras").tree.flatten(model._outputs_struct)
    *_, behind = masked_before(calls_between(model.inputs, outputs), _inside)
    masks = [mask_of(tensor) if id(tensor) in behind else None for tensor in outputs]
    nodes = calls_between(model.inputs, [*outputs, *(mask for mask in masks if mask is not None)])
    return Graph(model, nodes, list(model.inputs), model._outputs_struct, masks, masked_before(nodes, _inside))


def _inside(layer: Any) -> tuple[list, list, list] | None:
    """Return inputs, calls and outputs of a layer that is a model; `None` of another."""
    graph = graph_of(layer) if isinstance(layer, importlib.import_module("keras").Model) else None
    if graph is None:
        return None
    return graph.inputs, graph.nodes, importlib.import_module("keras").tree.flatten(graph.outputs)


def calls_between(inputs: list, outputs: list) -> list[Any]:
    """Return the nodes, calls of layers, by which some `KerasTensor`s come from others; each behind what it needs."""
    by_depth = importlib.import_module("keras").Function(inputs, outputs)._nodes_by_depth
    nodes = [node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth]]
    return [node for node in nodes if not node.is_input]


def standardized(graph: Graph, inputs: Any) -> list:
    """Return the tensors that a model makes of its inputs before its first layer, flat, in the order of its inputs."""
    return list(importlib.import_module("keras").tree.flatten(graph.model._standardize_inputs(inputs)))


def with_training(operation: Any, training: bool) -> Callable[..., Any]:
    """Return a layer, or an operation, as a model calls it in training or outside of it.

    Keras drops the argument where a layer has no use for it. A layer that was given `training` when the model was built
    keeps that from Keras 3.16 on; before, the model's own counts.
    """
    keras = importlib.import_module("keras")
    if not isinstance(operation, keras.layers.Layer):
        return operation
    if release_of(keras.__version__) >= (3, 16):
        return functools.partial(operation, training=training)
    return lambda *args, **kwargs: operation(*args, **{**kwargs, "training": training})


def added_losses(operation: Any) -> list:
    """Return what a layer, and layers in it, have added to the loss in its last call: `add_loss`, activities."""
    layers = layers_of(operation) if hasattr(operation, "_flatten_layers") else []
    return [loss for layer in layers for loss in layer._get_own_losses()]


def compiled_loss(model: "keras.Model", y: Any, y_pred: Any, sample_weight: Any) -> Any:
    """Return the loss that a model is compiled with, without what its layers add; `None` if it has none."""
    return None if model._compile_loss is None else model._compile_loss(y, y_pred, sample_weight)


def build_compiled(model: "keras.Model") -> tuple[list["keras.losses.Loss"], list["keras.metrics.Metric"]]:
    """Return the losses and metrics that a model of one output is compiled with; make those of labels if need be."""
    (output,) = model.outputs
    labels = importlib.import_module("keras").KerasTensor(output.shape[:-1])
    losses, metrics = model._compile_loss, model._compile_metrics
    for compiled in (losses, metrics):
        if compiled is not None and not compiled.built:
            compiled.build(labels, output)
    return [found.loss for found in losses._flat_losses] if losses else [], list(metrics.metrics) if metrics else []


def replace_validation_split(replace: Callable[[Callable], Callable]) -> None:
    """Let `replace(original)` stand for the function by which `fit(validation_split=...)` splits arrays.

    Where there is none it is left to `check` to say so.
    """
    with contextlib.suppress(ImportError, AttributeError):
        module: Any = importlib.import_module(_ARRAYS)
        module.train_validation_split = replace(module.train_validation_split)


# tf.data


def require_datasets() -> None:
    """Raise `EasyScaleError` if the TensorFlow that is loaded has another name for something of a dataset."""
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None:
        batches = tensorflow.data.Dataset.range(1).batch(1)
        for value, name in ((batches, "_inputs"), (batches, "_batch_size"), (iter(batches), "_dataset")):
            if not hasattr(value, name):
                raise missing("tensorflow", f"{type(value).__name__}.{name}")


def dataset_of_iterator(iterator: Iterator) -> Any:
    """Return the `tf.data.Dataset` that an iterator was made of; `None` for an iterator of something else."""
    return getattr(iterator, "_dataset", None)


def inputs_of(dataset: Any) -> list:
    """Return the datasets that a dataset is made of; none for what is no `tf.data.Dataset`."""
    return list(dataset._inputs()) if hasattr(dataset, "_inputs") else []


def shuffles(dataset: Any) -> bool:
    """Return whether a `tf.data.Dataset` has an order that depends on how often it has been gone through."""
    return "Shuffle" in type(dataset).__name__ or any(map(shuffles, inputs_of(dataset)))


def batch_size_of(dataset: Any) -> int | None:
    """Return the size of the batches that a `tf.data.Dataset` makes of its input; `None` if it makes none."""
    return int(dataset._batch_size) if hasattr(dataset, "_batch_size") else None


def last_batch_of(dataset: Any) -> int | None:
    """Return the size of the batches that were made last of a `tf.data.Dataset`; `None` if it is not known."""
    if (size := batch_size_of(dataset)) is not None:
        return size
    inputs = inputs_of(dataset)
    return last_batch_of(inputs[0]) if len(inputs) == 1 else None


def keeps_batches(dataset: Any) -> bool:
    """Return whether a step of tf.data passes on the batches of its input."""
    return type(dataset).__name__ in _KEEPING


def keeps_count(dataset: Any) -> bool:
    """Return whether a step of tf.data has as many elements as its input."""
    return type(dataset).__name__ in _KEEPING_COUNT


# Callbacks


def set_step(callback: "keras.callbacks.TensorBoard", steps: int) -> None:
    """Let a TensorBoard go on as one that has seen so many steps."""
    callback._global_train_batch = steps


def improves(checkpoint: "keras.callbacks.ModelCheckpoint", value: float) -> bool:
    """Return whether a value of what a checkpoint monitors is better than its best."""
    if checkpoint.monitor_op is None:
        checkpoint._set_monitor_op()
    return checkpoint.best is None or bool(checkpoint.monitor_op(value - checkpoint.min_delta, checkpoint.best))
