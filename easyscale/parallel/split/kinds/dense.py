"""Dense layers: some columns of the kernel, or some rows, on each rank."""

from typing import Any

import keras

from easyscale.parallel.split.kinds.kind import Kind
from easyscale.parallel.split.trip import Columns, Rows

__all__ = ["DenseColumns", "DenseRows"]


class _OfKernel(Kind):
    """A `Dense`, whose rows to the owners are its inputs."""

    layer_class = keras.layers.Dense

    def __init__(self, layer: keras.layers.Dense):
        super().__init__(layer)
        inputs, self.width = layer.kernel.shape
        self.row_shape, self.row_dtype = (inputs,), layer.compute_dtype

    def rows(self, inputs: Any) -> Any:
        return keras.ops.reshape(inputs, (-1, *self.row_shape))

    def compute(self, rows: Any) -> Any:
        return keras.ops.matmul(rows, self.layer.kernel)

    def result(self, rows: Any, inputs: Any) -> Any:
        whole = keras.ops.reshape(rows, (*keras.ops.shape(inputs)[:-1], self.width))
        return whole if self.layer.activation is None else self.layer.activation(whole)

    def _with_bias(self, rows: Any) -> Any:
        return rows if self.layer.bias is None else keras.ops.add(rows, self.layer.bias)


class DenseColumns(_OfKernel):
    """Some units of a `Dense` on each rank, with their biases. See `Columns` for what it sends.

    y = [x w[:, :c] + b[:c] | x w[:, c:] + b[c:]]
    """

    way, trip_class = "columns", Columns

    def __init__(self, layer: keras.layers.Dense):
        super().__init__(layer)
        self.length = self.width

    @property
    def slices(self) -> list[tuple[keras.Variable, int]]:
        biases = [] if self.layer.bias is None else [(self.layer.bias, 0)]
        return [(self.layer.kernel, 1), *biases]

    def compute(self, rows: Any) -> Any:
        return self._with_bias(super().compute(rows))


class DenseRows(_OfKernel):
    """Some inputs of a `Dense` on each rank; the biases are on all. See `Rows` for what it sends.

    y = x[:, :c] w[:c] + x[:, c:] w[c:] + b
    """

    way, trip_class = "rows", Rows

    def __init__(self, layer: keras.layers.Dense):
        super().__init__(layer)
        (self.length,) = self.row_shape

    @property
    def slices(self) -> list[tuple[keras.Variable, int]]:
        return [(self.layer.kernel, 0)]

    def result(self, rows: Any, inputs: Any) -> Any:
        return super().result(self._with_bias(rows), inputs)
