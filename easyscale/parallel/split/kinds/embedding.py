"""Embeddings: some rows or some columns of the table on each rank."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import keras

from easyscale.parallel.split.kinds.kind import CallShapes, Kind
from easyscale.parallel.split.trip import Columns, Lookup

__all__ = ["EmbeddingColumns", "EmbeddingRows"]


class _OfTable(Kind):
    """An `Embedding`, whose rows for the owners are numbers."""

    row_shape, row_dtype = (), "int32"

    def __init__(self, layer: keras.layers.Embedding):
        super().__init__(layer)
        self.length, self.width = layer.embeddings.shape

    @classmethod
    def suits(cls, layer: keras.layers.Layer) -> bool:
        return type(layer) is keras.layers.Embedding

    def count_rows(self, shape: tuple[int, ...]) -> int:
        return math.prod(shape[1:-1])

    def call(self, passage: Callable[..., Any], inputs: Any, *_: Any, **__: Any) -> Any:
        numbers = keras.ops.reshape(keras.ops.cast(inputs, self.row_dtype), (-1,))
        return keras.ops.reshape(passage([numbers]), (*keras.ops.shape(inputs), self.width))

    def compute(self, tensors: list[Any], form: int, owned: range) -> Any:
        return keras.ops.take(self.layer.embeddings, tensors[0], axis=0)

    def cost_whole(self, samples: int, calls: Sequence[CallShapes], ranks: int) -> float:
        """Return the bytes with gradients as rows, if that is less; the sharded update gathers the whole table."""
        dense, row = super().cost_whole(samples, calls, ranks), self.width * self._itemsize + 8  # with its index
        return min(dense, dense / 2 + (ranks - 1) * self.count(samples, calls) * row)


class EmbeddingColumns(_OfTable):
    """Some columns of an `Embedding`'s table on each rank, which receives the numbers of all workers.

    The cost is that of `Columns`, where the rows are numbers, which have no gradient.
    """

    way, trip_class = "columns", Columns

    def __init__(self, layer: keras.layers.Embedding):
        super().__init__(layer)
        self.length = self.width

    @property
    def slices(self) -> list[tuple[keras.Variable, int]]:
        return [(self.layer.embeddings, 1)]


class EmbeddingRows(_OfTable):
    """Some rows of an `Embedding`'s table on each rank, which receives the numbers of these rows. See `Lookup`."""

    way, trip_class = "rows", Lookup

    @property
    def slices(self) -> list[tuple[keras.Variable, int]]:
        return [(self.layer.embeddings, 0)]
