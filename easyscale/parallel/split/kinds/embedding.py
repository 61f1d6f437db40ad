"""Embeddings: some rows of the table, or some columns, on each rank."""

from typing import Any

import keras

from easyscale.parallel.split.kinds.kind import Kind
from easyscale.parallel.split.trip import Columns, Lookup

__all__ = ["EmbeddingColumns", "EmbeddingRows"]


class _OfTable(Kind):
    """An `Embedding`, whose rows to the owners are numbers."""

    layer_class = keras.layers.Embedding
    row_shape, row_dtype = (), "int32"

    def __init__(self, layer: keras.layers.Embedding):
        super().__init__(layer)
        self.length, self.width = layer.embeddings.shape

    def rows(self, inputs: Any) -> Any:
        return keras.ops.reshape(keras.ops.cast(inputs, self.row_dtype), (-1,))

    def compute(self, rows: Any) -> Any:
        return keras.ops.take(self.layer.embeddings, rows, axis=0)

    def result(self, rows: Any, inputs: Any) -> Any:
        return keras.ops.reshape(rows, (*keras.ops.shape(inputs), self.width))

    def cost_whole(self, rows: int, ranks: int) -> float:
        """A gradient travels as rows, where that is less; the sharded update gathers the whole table."""
        far, itemsize = ranks - 1, self._itemsize
        gathered = far / ranks * itemsize * self.length * self.width
        return min(super().cost_whole(rows, ranks), gathered + far * rows * (self.width * itemsize + 8))


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
