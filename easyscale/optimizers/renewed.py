"""Optimizers made again, in place: whoever has them has them still."""

import functools

import keras
from keras.src.optimizers.base_optimizer import BaseOptimizer  # what all backends have in common; it has no public name

from easyscale.replication.strategy import Everywhere
from easyscale.replication.values import value_of

__all__ = ["make_anew", "make_local", "replace"]

_FOR_EACH_COPY = (
    "_apply_weight_decay",
    "_backend_increment_gradient_accumulators",
    "_backend_update_step",
    "_overwrite_model_variables_with_average_value",
)


def make_anew(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """Return an optimizer with the configuration of another, not built."""
    new = type(optimizer).from_config(optimizer.get_config())
    for name in ("_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern"):
        if hasattr(optimizer, name):
            object.__setattr__(new, name, getattr(optimizer, name))
    return new


def replace(optimizer: keras.optimizers.Optimizer, new: keras.optimizers.Optimizer) -> None:
    """Make `optimizer` what `new` is."""
    vars(optimizer).clear()
    vars(optimizer).update(vars(new))


def make_local(optimizer: keras.optimizers.Optimizer) -> None:
    """Make an optimizer one of a single device, which may train variables that have copies on others.

    Its own variables are made again, with the same values, and it takes Keras's steps for all backends, which write to
    a variable: TensorFlow's are for each copy by itself.
    """
    values = [value_of(variable) for variable in optimizer.variables]
    new = make_anew(optimizer)
    if optimizer.built:
        new.build(optimizer._trainable_variables)
    for variable, value in zip(new.variables, values, strict=True):
        variable.assign(value)
    replace(optimizer, new)
    inner = getattr(optimizer, "inner_optimizer", None)
    for one in [optimizer, inner, *getattr(inner or optimizer, "optimizers", [])]:
        if one is not None:
            object.__setattr__(one, "_distribution_strategy", Everywhere(one._distribution_strategy))
        for name in _FOR_EACH_COPY if one is not None else ():
            if getattr(type(one), name) is getattr(keras.optimizers.Optimizer, name):  # not an optimizer's own way
                object.__setattr__(one, name, functools.partial(getattr(BaseOptimizer, name), one))
