"""Gradients of unreduced losses. `tf.GradientTape` differentiates a loss with one value per sample as their sum."""

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

__all__ = ["scale"]


def scale(samples: Callable[[], Any], factor: Callable[[], Any]) -> None:
    """Scale gradients with respect to Keras variables of losses with a row per sample. Called once.

    Gradients with respect to other tensors, such as the inputs in a gradient penalty, stay as they are. So do those of
    losses whose number of rows is known not to be the batch's, such as a stack of two means.

    Args:
        samples: Function. Returns this worker's number of samples in the step; `None` outside of a step.
        factor: Function. Returns the factor for the gradients; `None` if they stay as they are. All workers call it
            together.
    """
    original = tf.GradientTape.gradient

    @functools.wraps(original)
    def gradient(
        tape: tf.GradientTape, target: Any, sources: Any, output_gradients: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        rows, by_weights = samples(), any(isinstance(source, keras.Variable) for source in tf.nest.flatten(sources))
        losses = tf.nest.flatten(target)
        if rows is not None and by_weights and output_gradients is None:
            unreduced = [_has_rows(loss, rows) for loss in losses]
            # Static shapes may differ between workers, which must call `factor` together.
            if any(_is_vector(loss) and (loss.shape != (1,) or _known(rows) == 1) for loss in losses):
                scaled_by = factor()
                if scaled_by is not None:
                    ones = [
                        tf.ones_like(loss) * (tf.cast(scaled_by, loss.dtype) if is_unreduced else 1)
                        for loss, is_unreduced in zip(losses, unreduced, strict=True)
                    ]
                    output_gradients = tf.nest.pack_sequence_as(target, ones)
        return original(tape, target, sources, output_gradients, *args, **kwargs)

    tf.GradientTape.gradient = gradient


def _is_vector(loss: Any) -> bool:
    return isinstance(loss, tf.Tensor) and loss.shape.rank is not None and loss.shape.rank > 0


def _has_rows(loss: Any, samples: Any) -> bool:
    """Return whether a loss is assumed to have one row per sample."""
    if not _is_vector(loss):
        return False
    return loss.shape[0] is None or loss.shape[0] == _known(samples)


def _known(samples: Any) -> int | None:
    """Return a number of samples; `None` if it is not known before the step."""
    if tf.is_symbolic_tensor(samples) and samples.op.type == "StridedSlice":  # a slice of the batch's shape
        (shape, *_) = samples.op.inputs
        if shape.op.type == "Shape":
            return shape.op.inputs[0].shape[0]
        samples = tf.get_static_value(shape)
        return None if samples is None else int(samples[0])
    value = tf.get_static_value(samples) if isinstance(samples, tf.Tensor) else samples
    return None if value is None else int(value)
