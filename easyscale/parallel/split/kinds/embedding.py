"""Embeddings: some rows of the table, or some columns, on each rank."""

import math
from typing import Any

import keras

from easyscale.parallel.split.kinds.kind import Kind
from easyscale.parallel.split.trip import Columns, Lookup

__all__ = ["EmbeddingColumns", "EmbeddingRows"]


class _OfTable(Kind):
    """An `Embedding`, whose rows to the owners are numbers."""

    row_shape, row_dtype = (), "int32"

    def __init__(self, layer: keras.layers.Embedding):
        super().__init__(layer)
        self.length, self.width = layer.embeddings.shape

    @classmethod
    def suits(cls, layer: keras.layers.Layer) -> bool:
        return type(layer) is keras.layers.Embedding

    def count_rows(self, shape: tuple[int, ...]) -> int:
        return math.prod(shape[1:-1])

    def rows(self, inputs: Any) -> Any:
        return keras.ops.reshape(keras.ops.cast(inputs, self.row_dtype), (-1,))

    def compute(self, rows: Any) -> Any:
        return keras.ops.take(self.layer.embeddings, rows, axis=0)

    def result(self, rows: Any, inputs: Any) -> Any:
        return keras.ops.reshape(rows, (*keras.ops.shape(inputs), self.width))

    def cost_whole(self, rows: int, ranks: int) -> float:
        """A gradient travels as rows, where that is less; the sharded update gathers the whole table."""
        dense, row = super().cost_whole(rows, ranks), self.width * self._itemsize + 8  # with its number
        return min(dense, dense / 2 + (ranks - 1) * rows * row)


class EmbeddingColumns(_OfTable):
    """Some columns of an `Embedding`'s table on each rank, which gets the numbers of all workers.

    It sends what `Columns` does, where the rows are numbers, which have no gradient.
    """

    way, trip_class = "columns", Columns

    def __init__(self, layer: keras.layers.Embedding):
        super().__init__(layer)
        self.length = self.width

    @property
    def slices(self) -> list[tuple[keras.Variable, int]]:
        return [(self.layer.embeddings, 1)]


class EmbeddingRows(_OfTable):
    """Some rows of an `Embedding`'s table on each rank, which gets the numbers of these rows. See `Lookup`."""

    way, trip_class = "rows", Lookup

    @property
    def slices(self) -> list[tuple[keras.Variable, int]]:
        return [(self.layer.embeddings, 0)]
