"""What is to be known of a kind of layer so that it can be split in one way."""

import abc
import math
from typing import Any, ClassVar

import keras
import numpy as np

from easyscale.communicator import Communicator
from easyscale.parallel.split.trip import Trip

__all__ = ["Kind"]


class Kind(abc.ABC):
    """One layer of a kind, split in one way. It is made while the layer's weights are whole.

        rows of this worker --> trip --> compute, of this rank's slice --> trip --> results of this worker

    Args:
        layer: The layer. It is built.

    Attributes:
        way: String. How they are split: `"columns"` or `"rows"`, of the matrix that they have.
        trip_class: The class of `Trip` by which rows come to the owners.
        layer: The layer.
        row_shape: Tuple. The shape of a row that goes to the owners.
        row_dtype: String. Its dtype.
        length: Int. Of the axis that is divided.
        unit: Int. The columns of a row, or of what comes back, that belong to one index of it.
        width: Int. How wide a row is that comes back.
    """

    way: ClassVar[str]
    trip_class: ClassVar[type[Trip]]
    row_shape: tuple[int, ...]
    row_dtype: str
    length: int
    unit: int = 1
    width: int

    def __init__(self, layer: keras.layers.Layer):
        self.layer = layer

    @classmethod
    @abc.abstractmethod
    def suits(cls, layer: keras.layers.Layer) -> bool:
        """Return whether a layer can be split so."""

    @abc.abstractmethod
    def count_rows(self, shape: tuple[int, ...]) -> int:
        """Return how many rows there are for a sample, given the shape of the layer's output."""

    @property
    @abc.abstractmethod
    def slices(self) -> list[tuple[keras.Variable, int]]:
        """The weights that are divided, each with the axis along which it is."""

    def trip(self, communicator: Communicator) -> Trip:
        """Return the way of rows, for one call of the layer in a step."""
        return self.trip_class(communicator, self.length, self.unit)

    def cost(self, rows: int, ranks: int, has_gradient: bool) -> float:
        """Return the bytes that a rank sends in a step for this layer, with so many rows on each; see `Trip.cost`."""
        into = rows * math.prod(self.row_shape) * np.dtype(self.row_dtype).itemsize
        return self.trip_class.cost(into, rows * self.width * self._itemsize, ranks, has_gradient)

    def cost_whole(self, rows: int, ranks: int) -> float:
        """Return the bytes that a rank sends in a step if the layer is not split: gradients, and weights back."""
        return 2 * (ranks - 1) / ranks * self._itemsize * sum(math.prod(weight.shape) for weight in self.layer.weights)

    @property
    def _itemsize(self) -> int:
        return np.dtype(self.layer.compute_dtype).itemsize

    @abc.abstractmethod
    def rows(self, inputs: Any) -> Any:
        """Return what goes to the owners, of the layer's inputs, in the graph."""

    @abc.abstractmethod
    def compute(self, rows: Any) -> Any:
        """Return what this rank's slice makes of the rows that have come, in the graph."""

    @abc.abstractmethod
    def result(self, rows: Any, inputs: Any) -> Any:
        """Return the layer's output, of the rows that have come back, in the graph."""
