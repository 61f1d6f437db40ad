"""What is to be known of a kind of layer so that it can be split in one way."""

import abc
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import keras
import numpy as np

from easyscale.communicator import Communicator
from easyscale.parallel.split.trip import Trip, WithinGroup, within

__all__ = ["CallShapes", "Kind"]


class CallShapes(NamedTuple):
    """The shapes of one call of a layer, each with the samples as first axis.

    Attributes:
        inputs: Of all tensors that the layer is given, each once.
        output: Of the layer's output.
    """

    inputs: Sequence[tuple[int, ...]]
    output: tuple[int, ...]


class Kind(abc.ABC):
    """One layer of a kind, split in one way. It is made while the layer's weights are whole.

        rows of this worker --> trip --> compute, of this rank's slice --> trip --> results of this worker

    Args:
        layer: The layer. It is built.

    Attributes:
        way: String. How they are split: `"columns"` or `"rows"`, of the matrix that they have, ...
        is_automatic: Bool. Whether `Split("auto")` may split a layer so.
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
    is_automatic: ClassVar[bool] = True
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

    @property
    def indices(self) -> str:
        """What the indices of the axis are that is divided."""
        return self.way

    def refusals(self) -> Iterator[tuple[str, str, str]]:
        """Yield rule, what came and remedy for what slices of this kind of layer cannot do."""
        yield from ()

    @abc.abstractmethod
    def count_rows(self, shape: tuple[int, ...]) -> int:
        """Return how many rows there are for a sample, given the shape of the layer's output."""

    @property
    @abc.abstractmethod
    def slices(self) -> list[tuple[keras.Variable, int]]:
        """The weights that are divided, each with the axis along which it is: `length` indices, or a multiple."""

    def trip(self, communicator: Communicator) -> Trip:
        """Return the way of rows, for one call of the layer in a step."""
        return self.trip_class(communicator, self.length, self.unit)

    def trip_within(self, group: Communicator) -> WithinGroup:
        """Return the same among ranks that have the same rows."""
        return within(self.trip_class)(group, self.length, self.unit)

    def cost(self, samples: int, calls: Sequence[CallShapes], ranks: int, has_gradient: bool) -> float:
        """Return the bytes that a rank sends in a step for calls of this layer; see `Trip.cost`."""
        rows = self.count(samples, calls)
        into = rows * math.prod(self.row_shape) * np.dtype(self.row_dtype).itemsize
        return self.trip_class.cost(into, rows * self.width * self._itemsize, ranks, has_gradient)

    def cost_whole(self, samples: int, calls: Sequence[CallShapes], ranks: int) -> float:
        """Return the bytes that a rank sends in a step if the layer is not split: gradients, and weights back."""
        return 2 * (ranks - 1) / ranks * self._itemsize * sum(math.prod(weight.shape) for weight in self.layer.weights)

    def count(self, samples: int, calls: Sequence[CallShapes]) -> int:
        """Return how many rows there are in a worker's calls."""
        return samples * sum(self.count_rows(call.output) for call in calls)

    @property
    def _itemsize(self) -> int:
        return np.dtype(self.layer.compute_dtype).itemsize

    def rows(self, form: int) -> list[tuple[tuple[int | None, ...], str]]:
        """Return the shape of a row, and its dtype, of each tensor that a call of a form gives to the owners.

        Those that have gradients are before those that have none.
        """
        return [(self.row_shape, self.row_dtype)]

    @abc.abstractmethod
    def call(self, passage: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return the layer's output, in the graph.

        Args:
            passage: Function. `passage(tensors, form)` gives tensors to the owners and returns what comes back. The
                form is what else an owner must know of the call, as a number below `FORMS`; it defaults to 0.
            args, kwargs: What the layer is called with.
        """

    @abc.abstractmethod
    def compute(self, tensors: list[Any], form: int, owned: range) -> Any:
        """Return what this rank's slice makes of the tensors that have come, in the graph.

        Args:
            tensors: List. What `call` has given to `passage`, of all workers.
            form: Int. That of the call.
            owned: Range. The indices of the axis that is divided which this rank has.
        """
