"""Models whose steps XLA cannot compile, because workers communicate inside of them."""

import warnings

import keras

from easyscale import backend
from easyscale.errors import EasyScaleWarning

__all__ = ["compile_without_xla"]


def compile_without_xla(model: keras.Model, is_chief: bool) -> None:
    """Turn `jit_compile` off for a model if workers communicate inside of its steps, with a warning on the chief."""
    if model.jit_compile and backend.get().exchanges_in_steps:
        if is_chief:
            warnings.warn(
                "`jit_compile` is turned off for this model: an exchange between workers cannot be compiled. "
                "Pass `jit_compile=False` to `compile()`",
                EasyScaleWarning,
                stacklevel=3,
            )
        model.jit_compile = False
        model.train_function = model.test_function = model.predict_function = None
