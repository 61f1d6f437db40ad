"""Optimizers nested in others, and the variables of all of them."""

import keras

__all__ = ["all_variables", "inside"]


def inside(optimizer: keras.optimizers.Optimizer) -> list[keras.optimizers.Optimizer]:
    """Return the optimizers directly inside an optimizer: one in a `LossScaleOptimizer`, those of a list, or none.

    Example:

    >>> [found.name for found in inside(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(name="sgd")))]
    ['sgd']
    """
    inner = getattr(optimizer, "inner_optimizer", None)
    return list(getattr(optimizer, "optimizers", [inner] if inner is not None else []))


def all_variables(optimizer: keras.optimizers.Optimizer) -> list[keras.Variable]:
    """Return the variables that an optimizer lists, then its unlisted ones.

    Keras lists variables that an optimizer makes for itself, such as Nadam's product, only if the optimizer is not
    nested: for `LossScaleOptimizer(Nadam())` it does not save the product. EasyScale's checkpoints include it.
    """
    listed = list(optimizer.variables)
    known = set(map(id, listed))
    return listed + [variable for variable in _attributes(optimizer) if id(variable) not in known]


def _attributes(optimizer: keras.optimizers.Optimizer) -> list[keras.Variable]:
    found = [value for value in vars(optimizer).values() if isinstance(value, keras.Variable)]
    for part in inside(optimizer):
        found += _attributes(part)
    return found
