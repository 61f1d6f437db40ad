"""The part of the weights that a server owns and updates."""

import keras
import numpy as np

from easyscale.keras_internals import learning_rate_of
from easyscale.layout.shards import Shards
from easyscale.step.context import Apply
from easyscale.step.served import OwnedWeights
from easyscale.update.twin import Twin

__all__ = ["ServedPart"]


class ServedPart(OwnedWeights):
    """The pieces of a twin optimizer, for a server.

    Args:
        twin: `Twin`.
        whole: Bool. Whether its pieces are whole variables, rather than owned parts.
        variables: The rank's own variables.
        shards: `Shards` of the variables.
        update: Function. Updates pieces, its second argument, with gradients, its first.
    """

    def __init__(self, twin: Twin, whole: bool, variables: list[keras.Variable], shards: Shards, update: Apply):
        self._twin, self._whole, self._variables = twin, whole, variables
        self._parts, self._update = shards.parts, update

    def step(self, gradients: list) -> None:
        pieces = self._twin.pieces
        owned = [n for n, part in enumerate(self._parts) if part.start < part.stop and gradients[n] is not None]
        gradients = [keras.ops.reshape(gradients[number], pieces[number].shape) for number in owned]
        self._update(gradients, [pieces[number] for number in owned])

    def read(self) -> list[np.ndarray]:
        values = map(keras.ops.convert_to_numpy, self._twin.pieces)
        return [
            value.reshape(-1)[part] if self._whole else value for value, part in zip(values, self._parts, strict=True)
        ]

    def take(self) -> None:
        for piece, variable, part in zip(self._twin.pieces, self._variables, self._parts, strict=True):
            whole = keras.ops.convert_to_numpy(variable)
            piece.assign(whole if self._whole else whole.reshape(-1)[part])

    def set_rate(self, rate: float) -> None:
        now = learning_rate_of(self._twin.optimizer)
        if isinstance(now, keras.Variable) and float(now) != rate:
            now.assign(rate)
