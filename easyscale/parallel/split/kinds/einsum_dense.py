"""EinsumDense layers, such as the projections of attention: some indices of an axis of the kernel on each rank."""

import math
import re
from typing import Any

import keras

from easyscale.parallel.split.kinds.kind import Kind
from easyscale.parallel.split.trip import Columns, Rows

__all__ = ["EinsumDenseColumns", "EinsumDenseRows"]


def _axes(layer: keras.layers.EinsumDense) -> tuple[int, int] | None:
    """Return how many axes are summed over, and how many are new; `None` of an equation of another form.

    The form is that of a matrix product: the summed axes are the last ones of the inputs and the first ones of the
    kernel, and the new axes are the last ones of both.

    Example:

    >>> layer = keras.layers.EinsumDense("abc,cde->abde", (None, 2, 3))
    >>> _axes(layer)
    (1, 2)
    """
    inputs, kernel, output = re.split(",|->", layer.equation.replace(" ", "").replace("...", "."))
    summed = "".join(axis for axis in kernel if axis not in output)
    new = kernel[len(summed) :]
    batch = inputs.removesuffix(summed)
    is_product = kernel == summed + new and inputs == batch + summed and output == batch + new
    return (len(summed), len(new)) if is_product and summed and new else None


class _OfKernel(Kind):
    """An `EinsumDense` as a product of matrices. The biases are on all ranks."""

    layer_class = keras.layers.EinsumDense

    def __init__(self, layer: keras.layers.EinsumDense):
        super().__init__(layer)
        axes = _axes(layer)
        assert axes is not None  # it suits
        self._summed, self._new = tuple(layer.kernel.shape[: axes[0]]), tuple(layer.kernel.shape[axes[0] :])
        self.width = math.prod(self._new)
        self.row_shape, self.row_dtype = (math.prod(self._summed),), layer.compute_dtype

    @classmethod
    def suits(cls, layer: keras.layers.Layer) -> bool:
        return super().suits(layer) and _axes(layer) is not None

    def count_rows(self, shape: tuple[int, ...]) -> int:
        return math.prod(shape[1 : len(shape) - len(self._new)])

    def rows(self, inputs: Any) -> Any:
        return keras.ops.reshape(inputs, (-1, *self.row_shape))

    def compute(self, rows: Any) -> Any:
        kernel = self.layer.kernel
        own = math.prod(kernel.shape[: len(self._summed)]), math.prod(kernel.shape[len(self._summed) :])
        return keras.ops.matmul(rows, keras.ops.reshape(kernel, own))

    def result(self, rows: Any, inputs: Any) -> Any:
        batch = keras.ops.shape(inputs)[: len(inputs.shape) - len(self._summed)]
        whole = keras.ops.reshape(rows, (*batch, *self._new))
        whole = whole if self.layer.bias is None else keras.ops.add(whole, self.layer.bias)
        return whole if self.layer.activation is None else self.layer.activation(whole)


class EinsumDenseColumns(_OfKernel):
    """Some indices of the first new axis on each rank, such as heads of a query. See `Columns` for what it sends."""

    way, trip_class = "columns", Columns

    def __init__(self, layer: keras.layers.EinsumDense):
        super().__init__(layer)
        self.length, self.unit = self._new[0], math.prod(self._new[1:])

    @property
    def slices(self) -> list[tuple[keras.Variable, int]]:
        return [(self.layer.kernel, len(self._summed))]


class EinsumDenseRows(_OfKernel):
    """Some indices of the first summed axis on each rank, such as heads of a result. See `Rows` for what it sends."""

    way, trip_class = "rows", Rows

    def __init__(self, layer: keras.layers.EinsumDense):
        super().__init__(layer)
        self.length, self.unit = self._summed[0], math.prod(self._summed[1:])

    @property
    def slices(self) -> list[tuple[keras.Variable, int]]:
        return [(self.layer.kernel, 0)]
