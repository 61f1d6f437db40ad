"""Copies of optimizers, and their replacement in place, which keeps existing references valid."""

import keras

from easyscale.keras_internals import copy_exclusions
from easyscale.optimizers.nested import inside

__all__ = ["make_anew", "replace"]


def make_anew(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """Return a new, unbuilt optimizer with the configuration of another."""
    new = type(optimizer).from_config(optimizer.get_config())
    _exclude_alike(optimizer, new)
    return new


def _exclude_alike(optimizer: keras.optimizers.Optimizer, new: keras.optimizers.Optimizer) -> None:
    copy_exclusions(optimizer, new)
    for original, other in zip(inside(optimizer), inside(new), strict=True):
        _exclude_alike(original, other)


def replace(optimizer: keras.optimizers.Optimizer, new: keras.optimizers.Optimizer) -> None:
    """Replace the state of `optimizer` with that of `new`, in place."""
    vars(optimizer).clear()
    vars(optimizer).update(vars(new))
