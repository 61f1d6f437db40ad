"""What is to be known of a kind of layer so that it can be split in one way."""

import abc
from typing import Any, ClassVar

import keras

from easyscale.communicator import Communicator
from easyscale.parallel.split.trip import Trip

__all__ = ["Kind"]


class Kind(abc.ABC):
    """One layer of a kind, split in one way. It is made while the layer's weights are whole.

        rows of this worker --> trip --> compute, of this rank's slice --> trip --> results of this worker

    Args:
        layer: The layer. It is built.

    Attributes:
        layer_class: The class of layers that it is for.
        way: String. How they are split: `"columns"` or `"rows"`, of the matrix that they have.
        layer: The layer.
        row_shape: Tuple. The shape of a row that goes to the owners.
        row_dtype: String. Its dtype.
        width: Int. How wide a row is that comes back.
    """

    layer_class: ClassVar[type[keras.layers.Layer]]
    way: ClassVar[str]
    row_shape: tuple[int, ...]
    row_dtype: str
    width: int

    def __init__(self, layer: keras.layers.Layer):
        self.layer = layer

    @property
    @abc.abstractmethod
    def slices(self) -> list[tuple[keras.Variable, int]]:
        """The weights that are divided, each with the axis along which it is."""

    @abc.abstractmethod
    def trip(self, communicator: Communicator) -> Trip:
        """Return the way of rows, for one call of the layer in a step."""

    @abc.abstractmethod
    def rows(self, inputs: Any) -> Any:
        """Return what goes to the owners, of the layer's inputs, in the graph."""

    @abc.abstractmethod
    def compute(self, rows: Any) -> Any:
        """Return what this rank's slice makes of the rows that have come, in the graph."""

    @abc.abstractmethod
    def result(self, rows: Any, inputs: Any) -> Any:
        """Return the layer's output, of the rows that have come back, in the graph."""
