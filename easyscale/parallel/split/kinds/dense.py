"""Dense layers: some columns of the kernel, or some rows, on each rank."""

from typing import Any

import keras

from easyscale.communicator import Communicator
from easyscale.parallel.split.kinds.kind import Kind
from easyscale.parallel.split.trip import Columns, Rows, Trip

__all__ = ["DenseColumns", "DenseRows"]


class DenseColumns(Kind):
    """Some units of a `Dense` on each rank, with their biases. See `Columns` for what it sends.

    y = [x w[:, :c] + b[:c] | x w[:, c:] + b[c:]]
    """

    layer_class, way = keras.layers.Dense, "columns"

    def __init__(self, layer: keras.layers.Dense):
        super().__init__(layer)
        inputs, self.width = layer.kernel.shape
        self.row_shape, self.row_dtype = (inputs,), layer.compute_dtype

    @property
    def slices(self) -> list[tuple[keras.Variable, int]]:
        biases = [] if self.layer.bias is None else [(self.layer.bias, 0)]
        return [(self.layer.kernel, 1), *biases]

    def trip(self, communicator: Communicator) -> Trip:
        return Columns(communicator, self.width)

    def rows(self, inputs: Any) -> Any:
        return keras.ops.reshape(inputs, (-1, *self.row_shape))

    def compute(self, rows: Any) -> Any:
        return _with_bias(self.layer, keras.ops.matmul(rows, self.layer.kernel))

    def result(self, rows: Any, inputs: Any) -> Any:
        return _activated(self.layer, rows, inputs)


class DenseRows(Kind):
    """Some inputs of a `Dense` on each rank; the biases are on all. See `Rows` for what it sends.

    y = x[:, :c] w[:c] + x[:, c:] w[c:] + b
    """

    layer_class, way = keras.layers.Dense, "rows"

    def __init__(self, layer: keras.layers.Dense):
        super().__init__(layer)
        inputs, self.width = layer.kernel.shape
        self.row_shape, self.row_dtype = (inputs,), layer.compute_dtype

    @property
    def slices(self) -> list[tuple[keras.Variable, int]]:
        return [(self.layer.kernel, 0)]

    def trip(self, communicator: Communicator) -> Trip:
        return Rows(communicator, self.row_shape[0])

    def rows(self, inputs: Any) -> Any:
        return keras.ops.reshape(inputs, (-1, *self.row_shape))

    def compute(self, rows: Any) -> Any:
        return keras.ops.matmul(rows, self.layer.kernel)

    def result(self, rows: Any, inputs: Any) -> Any:
        return _activated(self.layer, _with_bias(self.layer, rows), inputs)


def _with_bias(layer: keras.layers.Dense, rows: Any) -> Any:
    return rows if layer.bias is None else keras.ops.add(rows, layer.bias)


def _activated(layer: keras.layers.Dense, rows: Any, inputs: Any) -> Any:
    """Return a layer's output in the shape that its inputs have, but for the last axis."""
    whole = keras.ops.reshape(rows, (*keras.ops.shape(inputs)[:-1], layer.units))
    return whole if layer.activation is None else layer.activation(whole)
