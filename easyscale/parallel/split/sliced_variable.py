"""A weight that is replaced by this rank's slice of it while its layer is split."""

from typing import Any

import keras
import numpy as np

from easyscale.backend import view_of
from easyscale.backend.base import Backend
from easyscale.communicator import Communicator
from easyscale.keras_internals import native_of, set_native
from easyscale.layout.sliced import Sliced

__all__ = ["SlicedVariable"]


class SlicedVariable:
    """A Keras variable that changes its value and shape, but stays the same object to model and optimizer.

    Graphs that were traced while it was whole keep using the whole value, those traced meanwhile the slice. The unused
    one of the two takes no memory.

    Args:
        variable: The variable. It is whole.
        axis: Int. The axis along which it is divided.
        unit: Int. Number of consecutive indices that stay together.
        communicator: The `Communicator`.
        backend: The `Backend`.

    Attributes:
        variable: The same.
        sliced: `Sliced`.
    """

    def __init__(self, variable: keras.Variable, axis: int, unit: int, communicator: Communicator, backend: Backend):
        self.variable, self._backend = variable, backend
        self.sliced = Sliced(variable.shape, axis, communicator, unit)
        self._whole = native_of(variable)
        self._slice: Any = None  # a native variable, like `_whole`

    def slice(self) -> None:
        """Replace the variable's value by this rank's slice of it."""
        part = np.array(self.sliced.part(view_of(self.variable)))
        if self._slice is None:
            self._slice = native_of(keras.Variable(part, dtype=self.variable.dtype, name=self.variable.name))
        else:
            self._backend.hold(self._slice, part)
        self.hide()

    def collect(self) -> np.ndarray:
        """Return the whole value. All ranks must call this while the variable is a slice."""
        return self.sliced.collect(view_of(self.variable))

    def show(self, whole: np.ndarray) -> None:
        """Make the variable whole on this rank, and keep its slice."""
        self._backend.hold(self._whole, whole)
        set_native(self.variable, self._whole)

    def hide(self) -> None:
        """Make the variable its slice again, and free the memory of its other value."""
        set_native(self.variable, self._slice)
        self._backend.hold(self._whole, None)

    def unite(self, whole: np.ndarray) -> None:
        """Make the variable whole on all ranks, and drop its slice."""
        self.show(whole)
        self.drop()

    def drop(self) -> None:
        """Free the slice's memory. The variable is whole."""
        self._backend.hold(self._slice, None)

    def unknown(self) -> np.ndarray:
        """Return a whole value with this rank's slice filled in, and NaN elsewhere."""
        part = view_of(self.variable)
        whole = np.full(self.sliced.shape, np.nan, part.dtype)
        self.sliced.part(whole)[...] = part
        return whole
