"""Single-device optimizers, for variables that have copies on other devices."""

import keras
import numpy as np

from easyscale.backend.tensorflow.in_graph.strategy import Everywhere
from easyscale.backend.tensorflow.variables import view_of
from easyscale.keras_internals import take_general_steps, trained_by
from easyscale.optimizers.nested import all_variables
from easyscale.optimizers.renewed import make_anew, replace

__all__ = ["make_local"]


def make_local(optimizer: keras.optimizers.Optimizer) -> None:
    """Turn an optimizer into a single-device one, which may train variables that have copies on other devices.

    Its own variables are recreated with the same values. It uses Keras's backend-independent steps, which write to one
    variable; TensorFlow's update each copy separately.
    """
    values = [np.array(view_of(variable)) for variable in all_variables(optimizer)]
    new = make_anew(optimizer)
    if optimizer.built:
        new.build(trained_by(optimizer))
    for variable, value in zip(all_variables(new), values, strict=True):
        variable.assign(value)
    replace(optimizer, new)
    inner = getattr(optimizer, "inner_optimizer", None)
    for part in [optimizer, inner, *getattr(inner or optimizer, "optimizers", [])]:
        if part is not None:
            take_general_steps(part, Everywhere)
