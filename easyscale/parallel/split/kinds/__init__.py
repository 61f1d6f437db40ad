"""The layers that can be split, and the ways to split them."""

import keras

from easyscale.parallel.split.kinds.attention import GroupedHeads, Heads
from easyscale.parallel.split.kinds.embedding import EmbeddingColumns, EmbeddingRows
from easyscale.parallel.split.kinds.kind import CallShapes, Kind
from easyscale.parallel.split.kinds.matrix_product import MatrixColumns, MatrixRows
from easyscale.parallel.split.kinds.vocabulary import Vocabulary

__all__ = ["WAYS", "CallShapes", "Kind", "Vocabulary", "kinds_of"]

_KINDS: list[type[Kind]] = [MatrixColumns, MatrixRows, EmbeddingColumns, EmbeddingRows, Heads, GroupedHeads, Vocabulary]

WAYS = ("columns", "rows", "heads", "vocabulary")


def kinds_of(layer: keras.layers.Layer) -> dict[str, type[Kind]]:
    """Return the ways in which a layer can be split, by name; none if it cannot be split.

    A layer of a user's own class cannot: it may compute something else.
    """
    return {kind.way: kind for kind in _KINDS if kind.suits(layer)}
