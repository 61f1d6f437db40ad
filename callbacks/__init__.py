"""Keras callbacks: `Distribute` makes a model's `fit()` that of all workers."""

from easyscale.callbacks.distribute import Distribute

__all__ = ["Distribute"]
