"""The interface of a kind of layer that can be split in one way."""

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
        inputs: The shapes of all input tensors, each once.
        output: The shape of the layer's output.
    """

    inputs: Sequence[tuple[int, ...]]
    output: tuple[int, ...]


class Kind(abc.ABC):
    """A layer of one kind, split in one way. Created while the layer's weights are whole.

        rows of this worker --> trip --> compute, of this rank's slice --> trip --> results of this worker

    Args:
        layer: The layer. It is built.

    Attributes:
        way: String. The way of splitting: `"columns"` or `"rows"` of the layer's matrix, ...
        is_automatic: Bool. Whether `Split("auto")` may split a layer this way.
        trip_class: The class of `Trip` that moves rows to the owners.
        layer: The layer.
        row_shape: Tuple. The shape of a row that goes to the owners.
        row_dtype: String. Its dtype.
        length: Int. The length of the divided axis.
        unit: Int. The columns of a row, or of a result, per index of that axis.
        width: Int. The width of a row that comes back.
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
        """Return whether a layer can be split this way."""

    @property
    def indices(self) -> str:
        """A noun for the indices of the divided axis."""
        return self.way

    def refusals(self) -> Iterator[tuple[str, str, str]]:
        """Yield rule, received value and remedy for each property that slices of this kind do not support."""
        yield from ()

    @abc.abstractmethod
    def count_rows(self, shape: tuple[int, ...]) -> int:
        """Return the number of rows per sample, given the shape of the layer's output."""

    @property
    @abc.abstractmethod
    def slices(self) -> list[tuple[keras.Variable, int]]:
        """The divided weights, each with the axis along which it is divided: `length` indices, or a multiple."""

    def trip(self, communicator: Communicator) -> Trip:
        """Return the `Trip` for one call of the layer in a step."""
        return self.trip_class(communicator, self.length, self.unit)

    def trip_within(self, group: Communicator) -> WithinGroup:
        """Return the `Trip` among ranks that have the same rows."""
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
        """Return the number of rows in a worker's calls."""
        return samples * sum(self.count_rows(call.output) for call in calls)

    @property
    def _itemsize(self) -> int:
        return np.dtype(self.layer.compute_dtype).itemsize

    def rows(self, form: int) -> list[tuple[tuple[int | None, ...], str]]:
        """Return the row shape and dtype of each tensor that a call of this form sends to the owners.

        Tensors with gradients come before those without.
        """
        return [(self.row_shape, self.row_dtype)]

    @abc.abstractmethod
    def call(self, passage: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return the layer's output, in the graph.

        Args:
            passage: Function. `passage(tensors, form)` sends tensors to the owners and returns the results. The form is
                a number below `_FORMS` in `passage.py` that describes the call to an owner; it defaults to 0.
            args, kwargs: The arguments of the layer's call.
        """

    @abc.abstractmethod
    def compute(self, tensors: list[Any], form: int, owned: range) -> Any:
        """Return the output of this rank's slice for the tensors received, in the graph.

        Args:
            tensors: List. The arguments of `passage` in `call`, from all workers.
            form: Int. The form of the call.
            owned: Range. This rank's indices of the divided axis.
        """
