"""Gradients of losses that are one number for each sample, which `tf.GradientTape` takes for their sum."""

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

__all__ = ["scale"]


def scale(factor: Callable[[], Any]) -> None:
    """Scale the gradients by variables of every loss that is not a scalar. Called once.

    Gradients by other tensors, such as those of a gradient penalty by its inputs, stay as they are.

    Args:
        factor: Function. Returns the number by which gradients are multiplied; `None` if they stay as they are.
    """
    original = tf.GradientTape.gradient

    @functools.wraps(original)
    def gradient(
        tape: tf.GradientTape, target: Any, sources: Any, output_gradients: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        by_variables = any(isinstance(source, (tf.Variable, keras.Variable)) for source in tf.nest.flatten(sources))
        if output_gradients is None and by_variables and any(map(_is_unreduced, tf.nest.flatten(target))):
            scaled_by = factor()
            if scaled_by is not None:
                output_gradients = tf.nest.map_structure(
                    lambda loss: tf.ones_like(loss) * (tf.cast(scaled_by, loss.dtype) if _is_unreduced(loss) else 1),
                    target,
                )
        return original(tape, target, sources, output_gradients, *args, **kwargs)

    tf.GradientTape.gradient = gradient


def _is_unreduced(loss: Any) -> bool:
    return isinstance(loss, tf.Tensor) and loss.shape.rank != 0
