"""Private names of Keras for training steps: losses, variables and optimizers."""

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

_LOSSES = "keras.src.losses.loss"  # the reductions of all of Keras's losses
_OPTIMIZER = "keras.src.optimizers.base_optimizer"  # the base class for all backends
_TYPES, _NARROWER = "keras.src.backend.common.dtypes", "BIT64_TO_BIT32_DTYPE"  # the dtypes that Keras narrows

_EXCLUSIONS = ("_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern")
_FOR_EACH_COPY = (  # methods that TensorFlow's optimizer overrides to run separately for each copy of a variable
    "_apply_weight_decay",
    "_backend_increment_gradient_accumulators",
    "_backend_update_step",
    "_overwrite_model_variables_with_average_value",
    "_backend_maybe_overwrite_model_variables",  # from Keras 3.16 on
)

_TORCH_OPTIMIZERS = "keras.src.backend.torch.optimizers.torch_{}"  # module of a class, by its name in lower case


# Losses and variables


def replace_in_losses(name: str, replace: Callable[[Callable], Callable]) -> None:
    """Replace a function that all of Keras's losses use for reduction by `replace(original)`."""
    module = importlib.import_module(_LOSSES)
    setattr(module, name, replace(getattr(module, name)))


def apply_mask(sample_weight: Any, mask: Any, dtype: str, reduction: str | None) -> Any:
    """Return the sample weights of a loss combined with its mask, as in Keras's losses."""
    return importlib.import_module(_LOSSES).apply_mask(sample_weight, mask, dtype, reduction)


def has_value(variable: Any) -> bool:
    """Return whether a Keras variable has been initialized; always true for other variables."""
    return getattr(variable, "_value", variable) is not None


def set_native(variable: "keras.Variable", native: Any) -> None:
    """Replace the framework variable behind a Keras variable: `native` becomes its `value`."""
    variable._value, variable._shape = native, tuple(native.shape)


def native_of(variable: "keras.Variable") -> Any:
    """Return the framework variable behind a Keras variable: its `value` without autocasting."""
    return variable._value


# Optimizers


def learning_rate_of(optimizer: "keras.optimizers.Optimizer") -> Any:
    """Return an optimizer's learning rate, a variable or a schedule; `None` if the optimizer has none itself."""
    return getattr(optimizer, "_learning_rate", None)


def counter_of(optimizer: "keras.optimizers.Optimizer") -> "keras.Variable":
    """Return the variable that counts an optimizer's steps, including those that only accumulate gradients."""
    return optimizer._iterations


def count_alike(optimizer: "keras.optimizers.Optimizer", other: "keras.optimizers.Optimizer", same: dict) -> None:
    """Make `other` use the step counter and the learning rate of `optimizer`.

    Args:
        optimizer: An optimizer.
        other: Another optimizer of the same class.
        same: Dict. From the `id` of a variable of `other` to the variable of `optimizer` that replaces it.
    """
    variables = [same.get(id(variable), variable) for variable in other._variables]
    object.__setattr__(other, "_variables", variables)  # TensorFlow forbids replacing tracked attributes
    matches, _ = other._tracker.config["variables"]
    other._tracker.config["variables"] = (matches, variables)
    # Keras tracks variables by `id`, which a later variable may have after an earlier one is gone.
    other._tracker.stored_ids["variables"] = set(map(id, variables))
    object.__setattr__(other, "_iterations", optimizer._iterations)
    object.__setattr__(other, "_learning_rate", optimizer._learning_rate)


def trained_by(optimizer: "keras.optimizers.Optimizer") -> list["keras.Variable"]:
    """Return the variables that an optimizer was built for."""
    return optimizer._trainable_variables


def accumulated_gradients(optimizer: "keras.optimizers.Optimizer", variables: Sequence | None = None) -> list:
    """Return the gradients that an optimizer has accumulated for `variables`, by default all; some may be `None`."""
    if variables is None:
        return optimizer._accumulated_gradients
    return _of_variables(optimizer, optimizer._accumulated_gradients, variables)


def slots_of(optimizer: "keras.optimizers.Optimizer", name: str, variables: Sequence["keras.Variable"]) -> list:
    """Return, for each of `variables`, the framework variable in one of an optimizer's lists of slots."""
    return [slot.value for slot in _of_variables(optimizer, getattr(optimizer, name), variables)]


def _of_variables(optimizer: "keras.optimizers.Optimizer", slots: Sequence, variables: Sequence) -> list:
    of_all = {id(variable): slot for variable, slot in zip(trained_by(optimizer), slots, strict=True)}
    return [of_all[id(variable)] for variable in variables]


def replace_parallel_step(name: str, replace: Callable[[Callable], Callable]) -> None:
    """Replace the PyTorch step of an optimizer class, which updates all variables at once, by `replace(original)`."""
    kind: Any = getattr(importlib.import_module(_TORCH_OPTIMIZERS.format(name.lower())), name)
    kind._parallel_update_step = replace(kind._parallel_update_step)


def excluded_from_weight_decay(
    optimizer: "keras.optimizers.Optimizer", variables: Sequence["keras.Variable"]
) -> tuple[list[int], list[str] | None]:
    """Return the indices of `variables` excluded from weight decay, and the patterns of excluded names."""
    keys, pattern = (getattr(optimizer, name, None) for name in _EXCLUSIONS)
    excluded = [number for number, variable in enumerate(variables) if keys and optimizer._var_key(variable) in keys]
    return excluded, pattern and [pattern.pattern]


def copy_exclusions(optimizer: "keras.optimizers.Optimizer", other: "keras.optimizers.Optimizer") -> None:
    """Copy the exclusions from weight decay of `optimizer` to `other`."""
    for name in _EXCLUSIONS:
        if hasattr(optimizer, name):
            object.__setattr__(other, name, getattr(optimizer, name))


def take_general_steps(optimizer: "keras.optimizers.Optimizer", in_strategy: Callable[[Any], Any]) -> None:
    """Make an optimizer use Keras's backend-independent update methods, which assign to variables.

    Args:
        optimizer: An optimizer.
        in_strategy: Function. Takes the `tf.distribute.Strategy` of the optimizer and returns its replacement.
    """
    general = importlib.import_module(_OPTIMIZER).BaseOptimizer
    stock = importlib.import_module("keras").optimizers.Optimizer
    object.__setattr__(optimizer, "_distribution_strategy", in_strategy(optimizer._distribution_strategy))
    for name in _FOR_EACH_COPY:
        if getattr(type(optimizer), name, None) is getattr(stock, name, general):  # not overridden by the optimizer
            object.__setattr__(optimizer, name, functools.partial(getattr(general, name), optimizer))


def keep_float64() -> None:
    """Keep float64 results from now on where Keras narrows them to float32, as in losses on PyTorch."""
    getattr(importlib.import_module(_TYPES), _NARROWER)["float64"] = "float64"
