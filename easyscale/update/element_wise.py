"""Detection of optimizers that treat each element of a weight separately, so that workers can update parts of it."""

import json
from typing import Any

import keras
import numpy as np

from easyscale.update.accumulated import unscaled

__all__ = ["copy_of", "is_element_wise", "is_of_keras", "why_not_elsewhere"]

_tried: dict[tuple[type, str], bool] = {}  # a trial takes as long as many steps of a small model


def why_not_elsewhere(optimizer: keras.optimizers.Optimizer, variables: list) -> str | None:
    """Return the reason why a worker cannot update weights for the others, or `None` if it can."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return "it skips a step by the gradients of all weights together"
    if hasattr(optimizer, "optimizers"):
        return "it chooses another optimizer by a weight's path"
    if getattr(optimizer, "gradient_accumulation_steps", None):
        return "it accumulates whole gradients on each worker"
    if getattr(optimizer, "use_ema", False):
        return "it keeps moving averages of whole weights, which callbacks put in their place"
    if any(getattr(variable, "constraint", None) is not None for variable in variables):
        return "a weight has a constraint, which looks at all of it"
    if any(getattr(variable, "overwrite_with_gradient", False) for variable in variables):
        return "a weight is overwritten with its gradient"
    return None


def is_element_wise(optimizer: keras.optimizers.Optimizer) -> bool:
    """Return whether the optimizer updates a part of a matrix in the same way alone as within the whole.

    This is tried: two steps on a matrix, and on two parts of it as vectors. Clipping by norms is left out, because
    workers do it together. The result is cached by class and configuration.
    """
    try:
        config = {**optimizer.get_config(), "name": None, "learning_rate": None}
        key = type(optimizer), json.dumps(config, sort_keys=True, default=repr)
    except Exception:  # a custom optimizer that cannot be copied
        return False
    if key not in _tried:
        _tried[key] = _try(optimizer)
    return _tried[key]


def _try(optimizer: keras.optimizers.Optimizer) -> bool:
    generator = np.random.default_rng(0)
    weights, *gradients = generator.normal(size=(3, 4, 6)).astype("float32")
    parts: list[list[slice]] = [[slice(0, 24)], [slice(0, 10), slice(10, 24)]]
    shapes: list[list[tuple[int, ...]]] = [[(4, 6)], [(10,), (14,)]]
    results = []
    try:
        for slices, part_shapes in zip(parts, shapes, strict=True):
            trial = copy_of(optimizer, learning_rate=0.1)  # its own may start at zero
            pieces = [
                keras.Variable(weights.reshape(-1)[part].reshape(shape), name="kernel")
                for part, shape in zip(slices, part_shapes, strict=True)
            ]
            trial.build(pieces)
            for gradient in gradients:
                tensors = [
                    keras.ops.convert_to_tensor(gradient.reshape(-1)[part].reshape(shape))
                    for part, shape in zip(slices, part_shapes, strict=True)
                ]
                trial.apply(tensors, pieces)
            results.append(np.concatenate([keras.ops.convert_to_numpy(piece).reshape(-1) for piece in pieces]))
    except Exception:  # a custom optimizer that cannot be tried like this
        return False
    return bool(np.allclose(results[0], results[1], rtol=1e-5, atol=1e-7))


def is_of_keras(optimizer: keras.optimizers.Optimizer) -> bool:
    """Return whether the optimizer is a known one: XLA can compile it, and a trial on one shape is conclusive."""
    return type(unscaled(optimizer)).__module__.partition(".")[0] in ("keras", "easyscale")


def copy_of(optimizer: keras.optimizers.Optimizer, **options: Any) -> keras.optimizers.Optimizer:
    """Return an unbuilt optimizer with the same configuration, except for `options` and clipping by norms."""
    config = optimizer.get_config()
    options = {"clipnorm": None, "global_clipnorm": None, **options}
    config |= {name: value for name, value in options.items() if name in config}
    return type(optimizer).from_config(config)
