"""What is known of a Keras `fit()` only by looking into it, or into the model.

Keras tells callbacks neither the data nor how they are batched. They are found in the frame of `fit()`, by the names
that its arguments have. What is known by their private names is in `easyscale.keras_internals`.
"""

import sys
from collections.abc import Mapping
from types import FrameType

import keras

__all__ = ["KERAS_BATCH", "is_overridden", "locals_of_fit"]

KERAS_BATCH = 32  # the default of `fit()`


def is_overridden(model: keras.Model, name: str) -> bool:
    """Return whether the class of a model has a method of its own in place of Keras's."""
    return getattr(type(model), name, None) is not getattr(keras.Model, name)


def locals_of_fit(model: keras.Model) -> Mapping:
    """Return the arguments and other local variables of the model's `fit()`, which has called this; or none."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "fit" and frame.f_locals.get("self") is model and "epoch_iterator" in frame.f_locals:
            return dict(frame.f_locals)
        frame = frame.f_back
    return {}
