"""Variables that layers assign themselves in each step, without the optimizer."""

import keras

from easyscale import keras_internals
from easyscale.training.parts.batch_normalization import moves_statistics
from easyscale.training.parts.own_state import averaged_in_steps

__all__ = ["assigned_in_steps", "spectral_normalizations"]


def assigned_in_steps(model: keras.layers.Layer) -> list[keras.Variable]:
    """Return the variables that layers assign in a training step, which are exchanged with its gradients.

    These are moving statistics of batch normalization, which each worker updates from its own part of the batch;
    weights of custom layers with `aggregation="mean"`; and those that spectral normalization assigns: its vector, and
    the kernel divided by its norm. There, all workers that have samples assign the same values; one whose part of a
    batch is empty does not, and receives them from the others.
    """
    assigned: list[keras.Variable] = []
    for layer in keras_internals.layers_of(model):  # once: eagerly, this is called in each step
        if moves_statistics(layer):
            assigned += layer.non_trainable_variables
        elif _divides_kernel(layer):
            assigned += [layer.vector_u, layer.kernel]
    known = {*map(id, assigned)}
    return assigned + [variable for variable in averaged_in_steps(model) if id(variable) not in known]


def spectral_normalizations(model: keras.layers.Layer) -> list[keras.layers.SpectralNormalization]:
    """Return the layers of a model, or nested in a layer, that divide a kernel by its norm in each step."""
    return [layer for layer in keras_internals.layers_of(model) if _divides_kernel(layer)]


def _divides_kernel(layer: keras.layers.Layer) -> bool:
    return isinstance(layer, keras.layers.SpectralNormalization) and layer.built
