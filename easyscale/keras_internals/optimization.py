"""What Keras has no public name for in a step of training: losses, variables and optimizers."""

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import keras

__all__ = [
    "accumulated_gradients",
    "apply_mask",
    "copy_exclusions",
    "count_alike",
    "counter_of",
    "excluded_from_weight_decay",
    "has_value",
    "keep_float64",
    "learning_rate_of",
    "native_of",
    "replace_in_losses",
    "replace_parallel_step",
    "set_native",
    "slots_of",
    "take_general_steps",
    "trained_by",
]

_LOSSES = "keras.src.losses.loss"  # where all of Keras's losses are reduced
_OPTIMIZER = "keras.src.optimizers.base_optimizer"  # what all backends have in common
_TYPES, _NARROWER = "keras.src.backend.common.dtypes", "BIT64_TO_BIT32_DTYPE"  # what results have in place of a type

_EXCLUSIONS = ("_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern")
_FOR_EACH_COPY = (  # the steps of an optimizer that TensorFlow's makes for each copy of a variable by itself
    "_apply_weight_decay",
    "_backend_increment_gradient_accumulators",
    "_backend_update_step",
    "_overwrite_model_variables_with_average_value",
    "_backend_maybe_overwrite_model_variables",  # from Keras 3.16 on
)

_TORCH_OPTIMIZERS = "keras.src.backend.torch.optimizers.torch_{}"  # by its name in lower case, with a class of its name


# Losses and variables


def replace_in_losses(name: str, replace: Callable[[Callable], Callable]) -> None:
    """Let `replace(original)` stand for a function by which all of Keras's losses are reduced."""
    module = importlib.import_module(_LOSSES)
    setattr(module, name, replace(getattr(module, name)))


def apply_mask(sample_weight: Any, mask: Any, dtype: str, reduction: str | None) -> Any:
    """Return the weights of a loss with its mask in them, as Keras's losses do."""
    return importlib.import_module(_LOSSES).apply_mask(sample_weight, mask, dtype, reduction)


def has_value(variable: Any) -> bool:
    """Return whether a variable of Keras has a value, and not only what will make it one; others always have."""
    return getattr(variable, "_value", variable) is not None


def set_native(variable: "keras.Variable", native: Any) -> None:
    """Let a variable stand for another one of the framework's: `native` is its `value` from here on."""
    variable._value, variable._shape = native, tuple(native.shape)


def native_of(variable: "keras.Variable") -> Any:
    """Return what a variable stands for: its `value`, which no policy casts."""
    return variable._value


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
    # Keras knows what it tracks by identity, which a later variable may have after one that is gone.
    other._tracker.stored_ids["variables"] = set(map(id, variables))
    object.__setattr__(other, "_iterations", optimizer._iterations)
    object.__setattr__(other, "_learning_rate", optimizer._learning_rate)


def trained_by(optimizer: "keras.optimizers.Optimizer") -> list["keras.Variable"]:
    """Return the variables that an optimizer was built for."""
    return optimizer._trainable_variables


def accumulated_gradients(optimizer: "keras.optimizers.Optimizer", variables: Sequence | None = None) -> list:
    """Return what an optimizer has summed up for each of `variables`, by default for all; some may be `None`."""
    if variables is None:
        return optimizer._accumulated_gradients
    return _of_variables(optimizer, optimizer._accumulated_gradients, variables)


def slots_of(optimizer: "keras.optimizers.Optimizer", name: str, variables: Sequence["keras.Variable"]) -> list:
    """Return, for each of `variables`, the framework's variable of one of an optimizer's lists of states."""
    return [slot.value for slot in _of_variables(optimizer, getattr(optimizer, name), variables)]


def _of_variables(optimizer: "keras.optimizers.Optimizer", slots: Sequence, variables: Sequence) -> list:
    of_all = {id(variable): slot for variable, slot in zip(trained_by(optimizer), slots, strict=True)}
    return [of_all[id(variable)] for variable in variables]


def replace_parallel_step(name: str, replace: Callable[[Callable], Callable]) -> None:
    """Let `replace(original)` stand for the step that an optimizer of this name makes on PyTorch for all variables."""
    kind: Any = getattr(importlib.import_module(_TORCH_OPTIMIZERS.format(name.lower())), name)
    kind._parallel_update_step = replace(kind._parallel_update_step)


def excluded_from_weight_decay(
    optimizer: "keras.optimizers.Optimizer", variables: Sequence["keras.Variable"]
) -> tuple[list[int], list[str] | None]:
    """Return the numbers of those of `variables` that do not decay, and the patterns of names that do not."""
    keys, pattern = (getattr(optimizer, name, None) for name in _EXCLUSIONS)
    excluded = [number for number, variable in enumerate(variables) if keys and optimizer._var_key(variable) in keys]
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
        if getattr(type(optimizer), name, None) is getattr(stock, name, general):  # not an optimizer's own way
            object.__setattr__(optimizer, name, functools.partial(getattr(general, name), optimizer))


def keep_float64() -> None:
    """From now on results of float64 are float64 also where Keras makes them float32, as in losses on PyTorch."""
    getattr(importlib.import_module(_TYPES), _NARROWER)["float64"] = "float64"
