"""Two consecutive layers with no communication in between: a product split by columns, then one split by rows."""

import collections
from collections.abc import Callable, Sequence
from typing import Any

import keras

from easyscale.keras_internals import graph_of, layers_of
from easyscale.parallel.split.kinds import Kind
from easyscale.parallel.split.kinds.matrix_product import MatrixColumns, MatrixRows

__all__ = ["Pair", "pairs_of"]

# Elementwise activations, which a rank can compute for its columns.
_OF_EACH = tuple(
    getattr(keras.activations, name)
    for name in (
        *("linear", "relu", "relu6", "leaky_relu", "elu", "selu", "celu", "gelu", "silu", "mish"),
        *("sigmoid", "hard_sigmoid", "tanh", "softplus", "softsign", "exponential"),
    )
    if hasattr(keras.activations, name)
)


class Pair:
    """Passes the columns that a rank computes of the first layer on to the second layer, on the same rank.

        rank 0  x ---> h0 = f(x w[:, :c]) ---> h0 v[:c] ---+---> y0 + y1
                                                           X
        rank 1  x ---> h1 = f(x w[:, c:]) ---> h1 v[c:] ---+---> y0 + y1

    With `G` ranks, `a` bytes into the first layer and `b` out of the second, a rank sends `2 (G - 1) / G (a + b)` bytes
    in a step, in `4 (G - 1)` messages: one sum forward, one backward. Other code sees NaN as the first layer's output.

    Args:
        first: `MatrixColumns`.
        second: `MatrixRows`, the only layer that takes the first one's output.

    Reference: Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism",
    2019, section 3.
    """

    def __init__(self, first: MatrixColumns, second: MatrixRows):
        self.first, self.second = first, second
        self._kept: tuple[Any, Any] | None = None  # the output of the last call of the first layer, and its columns

    def keep(self, compute: Callable[[list[Any]], Any], inputs: Any) -> Any:
        """Return a placeholder for the first layer's output, in the graph, and keep this rank's columns.

        Args:
            compute: Function. Returns this rank's columns for rows.
            inputs: Tensor. The layer's input.
        """
        columns = compute([keras.ops.reshape(inputs, (-1, *self.first.row_shape))])
        if self.first.layer.activation is not None:
            columns = self.first.layer.activation(columns)
        unknown = keras.ops.convert_to_tensor(float("nan"), self.first.layer.compute_dtype)
        output = keras.ops.broadcast_to(unknown, self.first.whole_shape(inputs))
        self._kept = output, columns
        return output

    def take(self, inputs: Any) -> Any:
        """Return this rank's columns of the second layer's input."""
        assert self._kept is not None and self._kept[0] is inputs  # guaranteed by the model's graph
        return self._kept[1]


def pairs_of(model: keras.Model, kinds: Sequence[Kind]) -> list[Pair]:
    """Return the pairs among a model's split layers; none if the graph of its layers is unknown."""
    graph = graph_of(model)
    if graph is None:
        return []
    by_layer, outputs = {id(kind.layer): kind for kind in kinds}, set(map(id, keras.tree.flatten(graph.outputs)))
    takers, calls = collections.defaultdict[int, list](list), collections.Counter[int]()
    for node in graph.nodes:
        operation = node.operation
        calls.update(map(id, layers_of(operation) if isinstance(operation, keras.layers.Layer) else []))
        for tensor in node.input_tensors:
            takers[id(tensor)].append(operation)
    found = []
    for node in graph.nodes:
        output = id(node.outputs[0])
        first, others = by_layer.get(id(node.operation)), takers[output]
        second = by_layer.get(id(others[0])) if len(others) == 1 and output not in outputs else None
        if not isinstance(first, MatrixColumns) or not isinstance(second, MatrixRows) or not _fits(first, second):
            continue
        if calls[id(first.layer)] == calls[id(second.layer)] == 1:
            found.append(Pair(first, second))
    return found


def _fits(first: MatrixColumns, second: MatrixRows) -> bool:
    """Return whether a rank has all it needs: the same columns of both layers, and complete first outputs."""
    layer = first.layer
    is_of_each = layer.activation is None or layer.activation in _OF_EACH
    is_complete = first.is_complete and is_of_each and layer.activity_regularizer is None
    return is_complete and (first.length, first.unit) == (second.length, second.unit)
