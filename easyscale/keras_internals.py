"""What Keras and TensorFlow have no public name for, each behind a function that says what it is.

Another version may have other names. `check` says which is missing, before anything is done with it. Neither library is
loaded by this module.
"""

import dis
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from easyscale.errors import EasyScaleError

if TYPE_CHECKING:
    import keras

__all__ = [
    "LOGS",
    "OF_FIT",
    "Names",
    "accumulated_gradients",
    "added_losses",
    "apply_mask",
    "batch_size_of",
    "batches_of",
    "calls_between",
    "check",
    "compiled_loss",
    "copy_exclusions",
    "count_alike",
    "counter_of",
    "dataset_of",
    "dataset_of_iterator",
    "excluded_from_weight_decay",
    "graph_of",
    "has_ended",
    "hold_losses",
    "in_training",
    "improves",
    "initial_epoch",
    "inputs_of",
    "keeps_batches",
    "keeps_count",
    "last_batch_of",
    "layers_of",
    "learning_rate_of",
    "mask_of",
    "replace_in_losses",
    "replace_moments",
    "require",
    "set_batches",
    "set_initial_epoch",
    "set_mask",
    "set_native",
    "set_step",
    "standardized",
    "steps_of_pass",
    "strategy_of",
    "take_general_steps",
    "trained_by",
]

Names: TypeAlias = Mapping[tuple[str, str | None], Sequence[str]]  # from a module, and a class in it, to what it has

LOGS = "_get_metrics_result_or_logs"  # the method of a model through which logs go on their way to the callbacks
OF_FIT = "_use_cached_eval_dataset"  # the argument that `fit()` gives `evaluate()`, and nobody else does

_LOSSES = "keras.src.losses.loss"  # where all of Keras's losses are reduced
_ITERATOR = "keras.src.trainers.epoch_iterator"
_TRAINER = "keras.src.backend.tensorflow.trainer"
_FUNCTIONAL = "keras.src.models.functional"
_OPTIMIZER = "keras.src.optimizers.base_optimizer"  # what all backends have in common

_KEEPING = ("CacheDataset", "_OptionsDataset", "_PrefetchDataset")  # steps of tf.data that leave batches as they are
_KEEPING_COUNT = (*_KEEPING, "_MapDataset", "_ParallelMapDataset")  # that have as many elements as their input
_EXCLUSIONS = ("_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern")
_FOR_EACH_COPY = (  # the steps of an optimizer that TensorFlow's makes for each copy of a variable by itself
    "_apply_weight_decay",
    "_backend_increment_gradient_accumulators",
    "_backend_update_step",
    "_overwrite_model_variables_with_average_value",
)

# By module, and class in it: what the functions below use, and of optimizers also what those in `optimizers/` inherit.
_NAMES: Names = {
    ("keras", "Model"): ("_compile_loss", "_flatten_layers", "_initial_epoch", LOGS, OF_FIT),
    ("keras.callbacks", "ModelCheckpoint"): ("_is_improvement", "_set_monitor_op"),
    ("keras.callbacks", "TensorBoard"): ("_global_train_batch",),
    ("keras", "Function"): ("_nodes_by_depth",),
    ("keras", "Sequential"): ("_functional",),
    ("keras", "Variable"): ("_value",),
    ("keras.layers", "BatchNormalization"): ("_moments",),
    ("keras.layers", "Layer"): ("_get_own_losses", "_losses"),
    ("keras.optimizers", "Optimizer"): (
        "_accumulated_gradients",
        *_EXCLUSIONS,
        *_FOR_EACH_COPY,
        "_get_variable_index",
        "_iterations",
        "_learning_rate",
        "_tracker",
        "_trainable_variables",
        "_use_weight_decay",
        "_var_key",
        "_variables",
    ),
    (_OPTIMIZER, "BaseOptimizer"): _FOR_EACH_COPY,
    (_FUNCTIONAL, None): ("operation_fn",),
    (_FUNCTIONAL, "Functional"): ("_outputs_struct", "_standardize_inputs"),
    (_ITERATOR, "EpochIterator"): ("_current_iterator", "_num_batches", "_steps_seen"),
    (_LOSSES, None): (
        "apply_mask",
        "reduce_weighted_values",
        "scale_loss_for_distribution",
        "unscale_loss_for_distribution",
    ),
}

# The same of what Keras has on one backend only.
_NAMES_ON: dict[str, Names] = {
    "tensorflow": {
        (_TRAINER, "TensorFlowTrainer"): ("_distribute_strategy",),
        (_TRAINER, "TFEpochIterator"): ("_distributed_dataset",),
        ("keras.src.backend.tensorflow.optimizer", "TFOptimizer"): ("_distribution_strategy",),
    }
}


@functools.cache
def check() -> None:
    """Raise `EasyScaleError` if the Keras or TensorFlow that is installed has another name for something."""
    require(_NAMES)
    require(_NAMES_ON.get(importlib.import_module("keras").backend.backend(), {}))
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None:
        batches = tensorflow.data.Dataset.range(1).batch(1)
        for value, name in ((batches, "_inputs"), (batches, "_batch_size"), (iter(batches), "_dataset")):
            if not hasattr(value, name):
                raise _missing("tensorflow", f"{type(value).__name__}.{name}")


def require(names: Names) -> None:
    """Raise `EasyScaleError` if a library has another name for any of these."""
    for (module, kind), members in names.items():
        library = module.partition(".")[0]
        try:
            owner: Any = importlib.import_module(module)
            owner = owner if kind is None else getattr(owner, kind)
        except (ImportError, AttributeError):
            raise _missing(library, module if kind is None else f"{module}.{kind}") from None
        for name in members:
            if not _has(owner, name):
                raise _missing(library, f"{kind or module}.{name}")


def _missing(library: str, name: str) -> EasyScaleError:
    version = getattr(sys.modules.get(library), "__version__", "unknown")
    return EasyScaleError(
        f"{library} must have all that EasyScale uses of it. Received: {library} {version} without `{name}`. "
        f"Install an earlier {library}, or a later EasyScale"
    )


def _has(owner: ModuleType | type, name: str) -> bool:
    """Whether a module or class has a name, or one of the class's methods sets such an attribute, or knows the text."""
    if hasattr(owner, name):
        return True
    members = (
        [member for one in inspect.getmro(owner) for member in vars(one).values()] if inspect.isclass(owner) else []
    )
    methods = [inspect.unwrap(member) for member in members if callable(member)]
    codes = [method.__code__ for method in methods if inspect.isfunction(method)]
    return any(name in code.co_consts or (name in code.co_names and _sets(code, name)) for code in codes)


def _sets(code: CodeType, name: str) -> bool:
    return any(one.opname == "STORE_ATTR" and one.argval == name for one in dis.get_instructions(code))


# A model in its fit()


def layers_of(model: "keras.layers.Layer", recursive: bool = True) -> list["keras.layers.Layer"]:
    """Return the layers of a model, and with `recursive` it itself and the layers in its layers.

    Its `layers` are these, if it is a `Model`; a layer that is a `Trainer` has none.
    """
    return list(model._flatten_layers(include_self=recursive, recursive=recursive))


def strategy_of(model: "keras.Model") -> Any:
    """Return the `tf.distribute.Strategy` in whose scope a model was built; `None` if it was in none."""
    return vars(model).get("_distribute_strategy")


def initial_epoch(model: "keras.Model") -> int | None:
    """Return the epoch, from 0, that `fit()` begins with, whatever it was told; `None` if it was not set."""
    return model._initial_epoch


def set_initial_epoch(model: "keras.Model", epoch: int | None) -> None:
    """Let a `fit()` whose callbacks begin now, and each later one, begin with an epoch."""
    model._initial_epoch = epoch


# The graph of layers of a model


class Graph(NamedTuple):
    """The layers of a Functional or Sequential model, as they are called.

    Attributes:
        model: The Functional model, which is also what a Sequential one has in it.
        nodes: List of Keras's nodes, each a call of a layer, behind all whose outputs it takes.
        inputs: List of `KerasTensor`, flat.
        outputs: Nested structure of `KerasTensor`.
        masks: List of the mask of each output, flat; `None` for one that has none.
    """

    model: "keras.Model"
    nodes: list[Any]
    inputs: list[Any]
    outputs: Any
    masks: list[Any]


def graph_of(model: "keras.Model") -> Graph | None:
    """Return the graph of a model; `None` of one that is neither Sequential nor Functional, or not built."""
    functional = importlib.import_module(_FUNCTIONAL).Functional
    if isinstance(model, importlib.import_module("keras").Sequential):
        model = model._functional
    if not isinstance(model, functional) or type(model).call is not functional.call:
        return None
    outputs = importlib.import_module("keras").tree.flatten(model._outputs_struct)
    masks = [mask_of(tensor) for tensor in outputs]
    nodes = calls_between(model.inputs, [*outputs, *(mask for mask in masks if mask is not None)])
    return Graph(model, nodes, list(model.inputs), model._outputs_struct, masks)


def calls_between(inputs: list, outputs: list) -> list[Any]:
    """Return the nodes, calls of layers, by which some `KerasTensor`s come from others; each behind what it needs."""
    by_depth = importlib.import_module("keras").Function(inputs, outputs)._nodes_by_depth
    nodes = [node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth]]
    return [node for node in nodes if not node.is_input]


def standardized(graph: Graph, inputs: Any) -> list:
    """Return the tensors that a model makes of its inputs before its first layer, flat, in the order of its inputs."""
    return list(importlib.import_module("keras").tree.flatten(graph.model._standardize_inputs(inputs)))


def in_training(operation: Any) -> Callable[..., Any]:
    """Return a layer, or an operation, as a model calls it in training."""
    return importlib.import_module(_FUNCTIONAL).operation_fn(operation, training=True)


def added_losses(operation: Any) -> list:
    """Return what a layer, and layers in it, have added to the loss in its last call: `add_loss`, activities."""
    layers = layers_of(operation) if hasattr(operation, "_flatten_layers") else []
    return [loss for layer in layers for loss in layer._get_own_losses()]


def compiled_loss(model: "keras.Model", y: Any, y_pred: Any, sample_weight: Any) -> Any:
    """Return the loss that a model is compiled with, without what its layers add; `None` if it has none."""
    return None if model._compile_loss is None else model._compile_loss(y, y_pred, sample_weight)


def mask_of(tensor: Any) -> Any:
    """Return the mask that a layer has given its output; `None` if there is none."""
    return getattr(tensor, "_keras_mask", None)


def set_mask(tensor: Any, mask: Any) -> None:
    """Give a tensor a mask, as a layer does with its output."""
    tensor._keras_mask = mask


# Data of a fit(): its `epoch_iterator`


def set_batches(epoch_iterator: Any, count: int) -> None:
    """Let what goes through the data of an epoch ask for so many batches, from the next epoch on."""
    epoch_iterator._num_batches = count


def batches_of(epoch_iterator: Any) -> int | None:
    """Return how many batches the data have, or `None` if that is not known."""
    return epoch_iterator._num_batches


def has_ended(epoch_iterator: Any) -> bool:
    """Return whether the data have ended in the last epoch: the next one begins with the first batch."""
    return epoch_iterator._current_iterator is None or epoch_iterator._steps_seen == 0


def steps_of_pass(epoch_iterator: Any) -> int:
    """Return the steps through the data since their begin, with those that are about to be made."""
    return epoch_iterator._steps_seen


def dataset_of(epoch_iterator: Any) -> Any:
    """Return the `tf.data.Dataset` of what goes through the data of an epoch, or `None`."""
    return getattr(epoch_iterator, "_distributed_dataset", None)


# tf.data


def dataset_of_iterator(iterator: Iterator) -> Any:
    """Return the `tf.data.Dataset` that an iterator was made of; `None` for an iterator of something else."""
    return getattr(iterator, "_dataset", None)


def inputs_of(dataset: Any) -> list:
    """Return the datasets that a dataset is made of; none for what is no `tf.data.Dataset`."""
    return list(dataset._inputs()) if hasattr(dataset, "_inputs") else []


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
    return bool(checkpoint._is_improvement(value, checkpoint.best))


# Layers, losses, variables


def replace_moments(layer: "keras.layers.BatchNormalization", replacement: Callable) -> None:
    """Let a layer call `replacement(layer, original, inputs, mask)` for the moments of a batch. Only once."""
    if "_moments" not in vars(layer):
        object.__setattr__(layer, "_moments", functools.partial(replacement, layer, layer._moments))


def hold_losses(model: "keras.Model", make: Callable[[], list]) -> None:
    """Let each layer of a model keep what it adds to the loss in a list that `make()` returns. Only once."""
    for layer in layers_of(model):
        if not type(layer._losses).__module__.startswith("easyscale."):
            object.__setattr__(layer, "_losses", make())


def replace_in_losses(name: str, replace: Callable[[Callable], Callable]) -> None:
    """Let `replace(original)` stand for a function by which all of Keras's losses are reduced."""
    module = importlib.import_module(_LOSSES)
    setattr(module, name, replace(getattr(module, name)))


def apply_mask(sample_weight: Any, mask: Any, dtype: str, reduction: str | None) -> Any:
    """Return the weights of a loss with its mask in them, as Keras's losses do."""
    return importlib.import_module(_LOSSES).apply_mask(sample_weight, mask, dtype, reduction)


def set_native(variable: "keras.Variable", native: Any) -> None:
    """Let a variable stand for another one of the framework's: `native` is its `value` from here on."""
    variable._value = native


# Optimizers


def learning_rate_of(optimizer: "keras.optimizers.Optimizer") -> Any:
    """Return the variable, or the schedule, of an optimizer's learning rate; `None` if it has none of its own."""
    return getattr(optimizer, "_learning_rate", None)


def counter_of(optimizer: "keras.optimizers.Optimizer") -> "keras.Variable":
    """Return the variable that counts an optimizer's steps, also those that only accumulate gradients."""
    return optimizer._iterations


def count_alike(optimizer: "keras.optimizers.Optimizer", other: "keras.optimizers.Optimizer", same: dict) -> None:
    """Let `other` count steps, and learn, by the variables of `optimizer`.

    Args:
        optimizer: An optimizer.
        other: Another one of the same class.
        same: Dict. From the identity of a variable of `other` to that of `optimizer` which replaces it.
    """
    variables = [same.get(id(variable), variable) for variable in other._variables]
    object.__setattr__(other, "_variables", variables)  # past TensorFlow, which forbids to replace what it tracks
    matches, _ = other._tracker.config["variables"]
    other._tracker.config["variables"] = (matches, variables)
    object.__setattr__(other, "_iterations", optimizer._iterations)
    object.__setattr__(other, "_learning_rate", optimizer._learning_rate)


def trained_by(optimizer: "keras.optimizers.Optimizer") -> list["keras.Variable"]:
    """Return the variables that an optimizer was built for."""
    return optimizer._trainable_variables


def accumulated_gradients(optimizer: "keras.optimizers.Optimizer", variables: Sequence | None = None) -> list:
    """Return what an optimizer has summed up for each of `variables`, by default for all; some may be `None`."""
    if variables is None:
        return optimizer._accumulated_gradients
    return [optimizer._accumulated_gradients[optimizer._get_variable_index(variable)] for variable in variables]


def excluded_from_weight_decay(
    optimizer: "keras.optimizers.Optimizer", variables: Sequence["keras.Variable"]
) -> tuple[list[int], list[str] | None]:
    """Return the numbers of those of `variables` that do not decay, and the patterns of names that do not."""
    keys, pattern = (getattr(optimizer, name, None) for name in _EXCLUSIONS)
    excluded = [number for number, one in enumerate(variables) if keys and optimizer._var_key(one) in keys]
    return excluded, pattern and [pattern.pattern]


def copy_exclusions(optimizer: "keras.optimizers.Optimizer", other: "keras.optimizers.Optimizer") -> None:
    """Have the weights that do not decay by `optimizer` not decay by `other` either."""
    for name in _EXCLUSIONS:
        if hasattr(optimizer, name):
            object.__setattr__(other, name, getattr(optimizer, name))


def take_general_steps(optimizer: "keras.optimizers.Optimizer", in_strategy: Callable[[Any], Any]) -> None:
    """Have an optimizer take Keras's steps for all backends, which write to a variable.

    Args:
        optimizer: An optimizer.
        in_strategy: Function. Takes the `tf.distribute.Strategy` of the optimizer and returns what replaces it.
    """
    general = importlib.import_module(_OPTIMIZER).BaseOptimizer
    stock = importlib.import_module("keras").optimizers.Optimizer
    object.__setattr__(optimizer, "_distribution_strategy", in_strategy(optimizer._distribution_strategy))
    for name in _FOR_EACH_COPY:
        if getattr(type(optimizer), name) is getattr(stock, name):  # not an optimizer's own way
            object.__setattr__(optimizer, name, functools.partial(getattr(general, name), optimizer))
