"""Private names of Keras and tf.data for models: layers and their graph, datasets, callbacks."""

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
    "shuffle_seeds",
    "shuffles",
    "standardized",
    "strategy_of",
    "tensors_of",
    "with_training",
]

LOGS = "_get_metrics_result_or_logs"  # the method of a model that logs pass through before callbacks receive them
OF_FIT = "_use_cached_eval_dataset"  # the argument that only `fit()` passes to `evaluate()`

_ARRAYS = "keras.src.trainers.data_adapters.array_slicing"  # has the function that splits arrays for `fit()`
_FUNCTIONAL = "keras.src.models.functional"

_KEEPING = ("CacheDataset", "_OptionsDataset", "_PrefetchDataset")  # transformations that leave batches unchanged
_KEEPING_COUNT = (*_KEEPING, "_MapDataset", "_ParallelMapDataset")  # those that keep the number of elements


# A model in its fit()


def layers_of(model: "keras.layers.Layer", recursive: bool = True) -> list["keras.layers.Layer"]:
    """Return the layers of a model; with `recursive`, also the model itself and nested layers.

    A `Model` has them in `layers`; a layer that is a `Trainer` has no such attribute.
    """
    return list(model._flatten_layers(include_self=recursive, recursive=recursive))


def strategy_of(model: "keras.Model") -> Any:
    """Return the `tf.distribute.Strategy` in whose scope a model was built; `None` if there was none."""
    return vars(model).get("_distribute_strategy")


def leave_state_in(model: "keras.Model") -> None:
    """On JAX, mark a model's variables as up to date, so that Keras reads them before its next step."""
    model._jax_state_synced = True


def count_in_metrics(
    model: "keras.Model", counted: list, loss: Any, batch: tuple[Any, Any, Any], y_pred: Any
) -> tuple[Any, list]:
    """Return the logs of a step on JAX, and the new values of the variables of a model's metrics.

    Args:
        model: The model.
        counted: List of the values of its metrics' variables.
        loss: The loss of the batch.
        batch: Its inputs, targets and weights.
        y_pred: The model's output for the inputs.
    """
    x, y, sample_weight = batch
    return model._update_metrics_variables(counted, loss, x, y, y_pred, sample_weight)


def initial_epoch(model: "keras.Model") -> int | None:
    """Return the epoch, from 0, that overrides the `initial_epoch` of `fit()`; `None` if it is not set."""
    return model._initial_epoch


def set_initial_epoch(model: "keras.Model", epoch: int | None) -> None:
    """Set the first epoch of the `fit()` whose callbacks are starting, and of all later ones."""
    model._initial_epoch = epoch


# Layers


def replace_moments(layer: "keras.layers.BatchNormalization", replacement: Callable) -> None:
    """Make a layer call `replacement(layer, original, inputs, mask)` for the moments of a batch. Idempotent."""
    if "_moments" not in vars(layer):
        object.__setattr__(layer, "_moments", functools.partial(replacement, layer, layer._moments))


def hold_losses(model: "keras.Model", make: Callable[[], list]) -> None:
    """Make each layer of a model keep its added losses in a list that `make()` returns. Idempotent."""
    for layer in layers_of(model):
        if not type(layer._losses).__module__.startswith("easyscale."):
            object.__setattr__(layer, "_losses", make())


# The graph of layers of a model


class Graph(NamedTuple):
    """The calls of layers in a Functional or Sequential model.

    Attributes:
        model: The Functional model; for a Sequential one, the Functional model inside it.
        nodes: List of Keras's nodes, each a call of a layer, in topological order.
        inputs: List of `KerasTensor`, flat.
        outputs: Nested structure of `KerasTensor`.
        masks: List of the mask of each output, flat; `None` for one that has none when layers are called.
        masked: The `id`s of the tensors that have a mask before each node, and after the last one.
    """

    model: "keras.Model"
    nodes: list[Any]
    inputs: list[Any]
    outputs: Any
    masks: list[Any]
    masked: list[set[int]]


def graph_of(model: "keras.Model") -> Graph | None:
    """Return the graph of a model; `None` if it is neither Sequential nor Functional, or not built."""
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
    """Return inputs, calls and outputs of a layer that is a model; `None` for others."""
    graph = graph_of(layer) if isinstance(layer, importlib.import_module("keras").Model) else None
    if graph is None:
        return None
    return graph.inputs, graph.nodes, importlib.import_module("keras").tree.flatten(graph.outputs)


def calls_between(inputs: list, outputs: list) -> list[Any]:
    """Return the nodes, in topological order, that compute the `KerasTensor`s `outputs` from `inputs`."""
    by_depth = importlib.import_module("keras").Function(inputs, outputs)._nodes_by_depth
    nodes = [node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth]]
    return [node for node in nodes if not node.is_input]


def standardized(graph: Graph, inputs: Any) -> list:
    """Return a model's inputs as standardized before its first layer: a flat list, in the order of its inputs."""
    return list(importlib.import_module("keras").tree.flatten(graph.model._standardize_inputs(inputs)))


def with_training(operation: Any, training: bool) -> Callable[..., Any]:
    """Return a layer or operation as a model calls it with this `training`.

    Keras drops the argument if a layer does not take it. From Keras 3.16 on, a layer that was called with `training`
    when the model was built keeps that value; before, the model's value overrides it.
    """
    keras = importlib.import_module("keras")
    if not isinstance(operation, keras.layers.Layer):
        return operation
    if release_of(keras.__version__) >= (3, 16):
        return functools.partial(operation, training=training)
    return lambda *args, **kwargs: operation(*args, **{**kwargs, "training": training})


def added_losses(operation: Any) -> list:
    """Return the losses that a layer and its sublayers added in the last call: `add_loss`, activity regularizers."""
    layers = layers_of(operation) if hasattr(operation, "_flatten_layers") else []
    return [loss for layer in layers for loss in layer._get_own_losses()]


def compiled_loss(model: "keras.Model", y: Any, y_pred: Any, sample_weight: Any) -> Any:
    """Return a model's compiled loss, without its layers' added losses; `None` if it has none."""
    return None if model._compile_loss is None else model._compile_loss(y, y_pred, sample_weight)


def build_compiled(model: "keras.Model") -> tuple[list["keras.losses.Loss"], list["keras.metrics.Metric"]]:
    """Return the compiled losses and metrics of a model with one output; build them if necessary."""
    (output,) = model.outputs
    labels = importlib.import_module("keras").KerasTensor(output.shape[:-1])
    losses, metrics = model._compile_loss, model._compile_metrics
    for compiled in (losses, metrics):
        if compiled is not None and not compiled.built:
            compiled.build(labels, output)
    return [found.loss for found in losses._flat_losses] if losses else [], list(metrics.metrics) if metrics else []


def replace_validation_split(replace: Callable[[Callable], Callable]) -> None:
    """Replace the function that splits arrays for `fit(validation_split=...)` by `replace(original)`.

    If there is no such function, it does nothing: `check` reports it.
    """
    with contextlib.suppress(ImportError, AttributeError):
        module: Any = importlib.import_module(_ARRAYS)
        module.train_validation_split = replace(module.train_validation_split)


# tf.data


def require_datasets() -> None:
    """Raise `EasyScaleError` if datasets of the loaded TensorFlow, or their iterators, lack a private attribute."""
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None:
        batches = tensorflow.data.Dataset.range(1).batch(1)
        for value, name in ((batches, "_inputs"), (batches, "_batch_size"), (iter(batches), "_dataset")):
            if not hasattr(value, name):
                raise missing("tensorflow", f"{type(value).__name__}.{name}")


def dataset_of_iterator(iterator: Iterator) -> Any:
    """Return the `tf.data.Dataset` that an iterator was made from; `None` for other iterators."""
    return getattr(iterator, "_dataset", None)


def inputs_of(dataset: Any) -> list:
    """Return the input datasets of a `tf.data.Dataset`; an empty list for other data."""
    return list(dataset._inputs()) if hasattr(dataset, "_inputs") else []


def shuffles(dataset: Any) -> bool:
    """Return whether `shuffle` is among the transformations of a `tf.data.Dataset`: its order may differ by pass."""
    return "Shuffle" in type(dataset).__name__ or any(map(shuffles, inputs_of(dataset)))


def shuffle_seeds(dataset: Any) -> tuple[int, int] | None:
    """Return the seeds of a `shuffle`, `(0, 0)` without any; `None` if it is not a `tf.data.Dataset` of a `shuffle`."""
    if "Shuffle" not in type(dataset).__name__ or not hasattr(dataset, "_seed2"):
        return None
    return int(dataset._seed), int(dataset._seed2)


def tensors_of(dataset: Any) -> list:
    """Return the tensors that a `tf.data.Dataset` was made of; an empty list for other datasets."""
    return [
        tensor
        for tensor in getattr(dataset, "_tensors", None) or ()
        if hasattr(tensor, "numpy") and tensor.dtype.is_numpy_compatible
    ]


def batch_size_of(dataset: Any) -> int | None:
    """Return the batch size of a `tf.data.Dataset` whose last transformation is `batch`; else `None`."""
    return int(dataset._batch_size) if hasattr(dataset, "_batch_size") else None


def last_batch_of(dataset: Any) -> int | None:
    """Return the batch size of the last `batch` of a `tf.data.Dataset`; `None` if it is not known."""
    if (size := batch_size_of(dataset)) is not None:
        return size
    inputs = inputs_of(dataset)
    return last_batch_of(inputs[0]) if len(inputs) == 1 else None


def keeps_batches(dataset: Any) -> bool:
    """Return whether a dataset's last transformation leaves batches unchanged."""
    return type(dataset).__name__ in _KEEPING


def keeps_count(dataset: Any) -> bool:
    """Return whether a dataset's last transformation keeps the number of elements."""
    return type(dataset).__name__ in _KEEPING_COUNT


# Callbacks


def set_step(callback: "keras.callbacks.TensorBoard", steps: int) -> None:
    """Set the number of steps that a `TensorBoard` has seen, from which it continues."""
    callback._global_train_batch = steps


def improves(checkpoint: "keras.callbacks.ModelCheckpoint", value: float) -> bool:
    """Return whether a value of a checkpoint's monitored metric is better than its best."""
    if checkpoint.monitor_op is None:
        checkpoint._set_monitor_op()
    return checkpoint.best is None or bool(checkpoint.monitor_op(value - checkpoint.min_delta, checkpoint.best))
