"""Optimizers of one device, which train variables that have copies on others."""

import keras
import numpy as np

from easyscale.backend.tensorflow.in_graph.strategy import Everywhere
from easyscale.backend.tensorflow.variables import view_of
from easyscale.keras_internals import take_general_steps, trained_by
from easyscale.optimizers.nested import all_variables
from easyscale.optimizers.renewed import make_anew, replace

__all__ = ["make_local"]


def make_local(optimizer: keras.optimizers.Optimizer) -> None:
    """Make an optimizer one of a single device, which may train variables that have copies on others.

    Its own variables are made again, with the same values, and it takes Keras's steps for all backends, which write to
    a variable: TensorFlow's are for each copy by itself.
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
