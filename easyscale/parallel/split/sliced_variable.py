"""A weight that stands for this rank's slice of itself, as long as its layer is split."""

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
    """A variable of Keras that changes its value, and its shape, and stays the same object to model and optimizer.

    Graphs that were made while it was whole go on with the whole, those that were made meanwhile with the slice. The
    memory of the one that is not used is free.

    Args:
        variable: The variable. It is whole.
        axis: Int. The axis along which it is divided.
        unit: Int. So many indices of it stay together.
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
        self._slice: Any = None  # as `_whole`, a variable of the framework's own

    def slice(self) -> None:
        """Let the variable be this rank's slice of what it is."""
        part = np.array(self.sliced.part(view_of(self.variable)))
        if self._slice is None:
            self._slice = native_of(keras.Variable(part, dtype=self.variable.dtype, name=self.variable.name))
        else:
            self._backend.hold(self._slice, part)
        self.hide()

    def collect(self) -> np.ndarray:
        """Return the whole. All ranks must call this while the variable is a slice."""
        return self.sliced.collect(view_of(self.variable))

    def show(self, whole: np.ndarray) -> None:
        """Let the variable be a whole, on this rank, beside its slice."""
        self._backend.hold(self._whole, whole)
        set_native(self.variable, self._whole)

    def hide(self) -> None:
        """Let the variable be its slice again; what it was has no memory any more."""
        set_native(self.variable, self._slice)
        self._backend.hold(self._whole, None)

    def unite(self, whole: np.ndarray) -> None:
        """Let the variable be a whole on all ranks, without a slice."""
        self.show(whole)
        self.drop()

    def drop(self) -> None:
        """Let there be no slice. The variable is a whole."""
        self._backend.hold(self._slice, None)

    def unknown(self) -> np.ndarray:
        """Return a whole of which this rank's slice is known, and all else is NaN."""
        part = view_of(self.variable)
        whole = np.full(self.sliced.shape, np.nan, part.dtype)
        self.sliced.part(whole)[...] = part
        return whole
