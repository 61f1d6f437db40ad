"""Details of a Keras `fit()` that are visible only inside of it, or inside of the model.

Keras gives callbacks neither the data nor the batch size. They are read from the frame of `fit()`, by the names of its
arguments. Details with private names are in `easyscale.keras_internals`.
"""

import sys
from collections.abc import Mapping
from types import FrameType

import keras

__all__ = ["KERAS_BATCH", "is_overridden", "locals_of_fit"]

KERAS_BATCH = 32  # the default of `fit()`


def is_overridden(model: keras.Model, name: str) -> bool:
    """Return whether a model's class overrides one of Keras's methods."""
    return getattr(type(model), name, None) is not getattr(keras.Model, name)


def locals_of_fit(model: keras.Model) -> Mapping:
    """Return the arguments and other local variables of the model's `fit()` that is calling; empty if there is none."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "fit" and frame.f_locals.get("self") is model and "epoch_iterator" in frame.f_locals:
            return dict(frame.f_locals)
        frame = frame.f_back
    return {}
