"""What an optimizer has of variables, which is more than it lists."""

import keras

__all__ = ["all_variables"]


def all_variables(optimizer: keras.optimizers.Optimizer) -> list[keras.Variable]:
    """Return the variables that an optimizer lists, then those that it has beside.

    Keras lists what an optimizer makes for itself, such as the product of Nadam, only if the optimizer stands in no
    other: what it saves of a `LossScaleOptimizer(Nadam())` is without the product. A checkpoint of EasyScale has it.
    """
    listed = list(optimizer.variables)
    known = set(map(id, listed))
    return listed + [one for one in _attributes(optimizer) if id(one) not in known]


def _attributes(optimizer: keras.optimizers.Optimizer) -> list[keras.Variable]:
    inner = getattr(optimizer, "inner_optimizer", None)
    found = [value for value in vars(optimizer).values() if isinstance(value, keras.Variable)]
    for part in getattr(optimizer, "optimizers", [inner] if inner is not None else []):
        found += _attributes(part)
    return found
