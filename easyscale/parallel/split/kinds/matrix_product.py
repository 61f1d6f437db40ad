"""Layers that multiply by a matrix: some columns or some rows of it on each rank."""

import math
import re
from collections.abc import Callable
from typing import Any

import keras

from easyscale.parallel.split.kinds.kind import Kind
from easyscale.parallel.split.trip import Columns, Rows

__all__ = ["MatrixColumns", "MatrixRows"]


def _axes(layer: keras.layers.Layer) -> tuple[int, int] | None:
    """Return the numbers of summed axes and of new axes; `None` if the layer is not a matrix product.

    In a matrix product, the summed axes are the last ones of the inputs and the first ones of the kernel, and the new
    axes are the last ones of kernel and output.

    Example:

    >>> layer = keras.layers.EinsumDense("abc,cde->abde", (None, 2, 3))
    >>> _axes(layer)
    (1, 2)
    """
    if type(layer) is keras.layers.Dense:
        return 1, 1
    if type(layer) is not keras.layers.EinsumDense:
        return None
    inputs, kernel, output = re.split(",|->", layer.equation.replace(" ", "").replace("...", "."))
    summed = "".join(axis for axis in kernel if axis not in output)
    new = kernel[len(summed) :]
    batch = inputs.removesuffix(summed)
    is_product = kernel == summed + new and inputs == batch + summed and output == batch + new
    return (len(summed), len(new)) if is_product and summed and new else None


class _MatrixProduct(Kind):
    """A `Dense`, or an `EinsumDense` that is a matrix product, such as the projections of attention.

    A bias in the shape of the new axes is divided with the columns. Any other bias is on all ranks.
    """

    _divides_bias = False

    def __init__(self, layer: keras.layers.Layer):
        super().__init__(layer)
        axes = _axes(layer)
        assert axes is not None  # see `suits`
        self._summed, self._new = tuple(layer.kernel.shape[: axes[0]]), tuple(layer.kernel.shape[axes[0] :])
        self.width = math.prod(self._new)
        self.row_shape, self.row_dtype = (math.prod(self._summed),), layer.compute_dtype

    @classmethod
    def suits(cls, layer: keras.layers.Layer) -> bool:
        return _axes(layer) is not None

    def count_rows(self, shape: tuple[int, ...]) -> int:
        return math.prod(shape[1 : len(shape) - len(self._new)])

    def whole_shape(self, inputs: Any) -> tuple[Any, ...]:
        """Return the shape of the output for an input tensor, in the graph."""
        return (*keras.ops.shape(inputs)[: len(inputs.shape) - len(self._summed)], *self._new)

    def call(self, passage: Callable[..., Any], inputs: Any, *_: Any, **__: Any) -> Any:
        rows = passage([keras.ops.reshape(inputs, (-1, *self.row_shape))])
        whole = keras.ops.reshape(rows, self.whole_shape(inputs))
        if self.layer.bias is not None and not self._divides_bias:
            whole = keras.ops.add(whole, self.layer.bias)
        return whole if self.layer.activation is None else self.layer.activation(whole)

    def compute(self, tensors: list[Any], form: int, owned: range) -> Any:
        kernel = self.layer.kernel
        own = math.prod(kernel.shape[: len(self._summed)]), math.prod(kernel.shape[len(self._summed) :])
        return keras.ops.matmul(tensors[0], keras.ops.reshape(kernel, own))


class MatrixColumns(_MatrixProduct):
    """Some indices of the first new axis on each rank: units of a `Dense`, heads of a query. See `Columns`.

    y = [x w[:, :c] + b[:c] | x w[:, c:] + b[c:]]
    """

    way, trip_class = "columns", Columns

    def __init__(self, layer: keras.layers.Layer):
        super().__init__(layer)
        self.length, self.unit = self._new[0], math.prod(self._new[1:])
        self._divides_bias = layer.bias is not None and tuple(layer.bias.shape) == self._new

    @property
    def is_complete(self) -> bool:
        """True if the slice computes the complete product: no bias is added afterwards."""
        return self.layer.bias is None or self._divides_bias

    @property
    def slices(self) -> list[tuple[keras.Variable, int]]:
        return [(self.layer.kernel, len(self._summed)), *([(self.layer.bias, 0)] if self._divides_bias else [])]

    def compute(self, tensors: list[Any], form: int, owned: range) -> Any:
        computed = super().compute(tensors, form, owned)
        return keras.ops.add(computed, keras.ops.reshape(self.layer.bias, (-1,))) if self._divides_bias else computed


class MatrixRows(_MatrixProduct):
    """Some indices of the first summed axis on each rank: inputs of a `Dense`, heads of a result. See `Rows`.

    y = x[:, :c] w[:c] + x[:, c:] w[c:] + b
    """

    way, trip_class = "rows", Rows

    def __init__(self, layer: keras.layers.Layer):
        super().__init__(layer)
        self.length, self.unit = self._summed[0], math.prod(self._summed[1:])

    @property
    def slices(self) -> list[tuple[keras.Variable, int]]:
        return [(self.layer.kernel, 0)]
