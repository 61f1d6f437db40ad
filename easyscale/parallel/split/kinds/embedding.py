"""Embeddings: some rows of the table, or some columns, on each rank."""

from typing import Any

import keras

from easyscale.communicator import Communicator
from easyscale.parallel.split.kinds.kind import Kind
from easyscale.parallel.split.trip import Columns, Lookup, Trip

__all__ = ["EmbeddingColumns", "EmbeddingRows"]


class EmbeddingColumns(Kind):
    """Some columns of an `Embedding`'s table on each rank, which gets the numbers of all workers.

    It sends what `Columns` does, where the rows are numbers, which have no gradient.
    """

    layer_class, way = keras.layers.Embedding, "columns"
    row_shape, row_dtype = (), "int32"

    def __init__(self, layer: keras.layers.Embedding):
        super().__init__(layer)
        self.width = layer.embeddings.shape[1]

    @property
    def slices(self) -> list[tuple[keras.Variable, int]]:
        return [(self.layer.embeddings, 1)]

    def trip(self, communicator: Communicator) -> Trip:
        return Columns(communicator, self.width)

    def rows(self, inputs: Any) -> Any:
        return keras.ops.reshape(keras.ops.cast(inputs, self.row_dtype), (-1,))

    def compute(self, rows: Any) -> Any:
        return keras.ops.take(self.layer.embeddings, rows, axis=0)

    def result(self, rows: Any, inputs: Any) -> Any:
        return keras.ops.reshape(rows, (*keras.ops.shape(inputs), self.width))


class EmbeddingRows(Kind):
    """Some rows of an `Embedding`'s table on each rank, which gets the numbers of these rows. See `Lookup`."""

    layer_class, way = keras.layers.Embedding, "rows"
    row_shape, row_dtype = (), "int32"

    def __init__(self, layer: keras.layers.Embedding):
        super().__init__(layer)
        self._count, self.width = layer.embeddings.shape

    @property
    def slices(self) -> list[tuple[keras.Variable, int]]:
        return [(self.layer.embeddings, 0)]

    def trip(self, communicator: Communicator) -> Trip:
        return Lookup(communicator, self._count)

    def rows(self, inputs: Any) -> Any:
        return keras.ops.reshape(keras.ops.cast(inputs, self.row_dtype), (-1,))

    def compute(self, rows: Any) -> Any:
        return keras.ops.take(self.layer.embeddings, rows, axis=0)

    def result(self, rows: Any, inputs: Any) -> Any:
        return keras.ops.reshape(rows, (*keras.ops.shape(inputs), self.width))
