"""The choice of layers that send fewer bytes when they are split."""

from typing import Any, NamedTuple

import keras

from easyscale.keras_internals import Graph, graph_of
from easyscale.parallel.split.kinds import CallShapes, Kind, kinds_of

__all__ = ["Offer", "cheapest"]


class Offer(NamedTuple):
    """A way to split a layer.

    Attributes:
        kind: `Kind`.
        sent: Float. The bytes that a rank sends for the layer in a step if it is split this way.
        whole: Float. The bytes if it is not split.
    """

    kind: Kind
    sent: float
    whole: float


def cheapest(model: keras.Model, samples: int, ranks: int) -> list[Offer]:
    """Return the cheapest way to split each layer that can be split, in the order of calls.

    Args:
        model: The model.
        samples: Int. The samples in a worker's batch.
        ranks: Int. The number of workers.

    Raises:
        ValueError: If the graph of the model's layers is unknown.
    """
    graph = graph_of(model)
    if graph is None:
        raise ValueError(
            "`Split('auto')` counts the bytes of a Sequential or Functional model that is built. Received: "
            f"{type(model).__name__} '{model.name}'. Name the layers, as in Split({{'fc.*': 'columns'}})"
        )
    offers = []
    for layer, calls, has_gradient in _calls(graph):
        shapes = [shape for call in calls for shape in (*call.inputs, call.output)]
        if any(None in shape[1:] for shape in shapes):  # the number of rows is unknown
            continue
        ways = []
        for kind in (kind(layer) for kind in kinds_of(layer).values() if kind.is_automatic):
            sent, whole = kind.cost(samples, calls, ranks, has_gradient), kind.cost_whole(samples, calls, ranks)
            ways.append(Offer(kind, sent, whole))
        offers += sorted(ways, key=lambda offer: offer.sent)[:1]
    return offers


def _calls(graph: Graph) -> list[tuple[keras.layers.Layer, list[CallShapes], bool]]:
    """Return each layer that can be split, with its calls and whether its inputs have a gradient."""
    trained: set[int] = set()  # tensors that depend on a trainable weight
    found: dict[int, tuple[Any, list[CallShapes], bool]] = {}
    for node in graph.nodes:
        layer = node.operation
        has_gradient = any(id(tensor) in trained for tensor in node.input_tensors)
        if has_gradient or list(getattr(layer, "trainable_variables", [])):
            trained.update(map(id, node.outputs))
        if not kinds_of(layer):
            continue
        inputs = {id(tensor): tuple(tensor.shape) for tensor in node.input_tensors}
        _, calls, had_gradient = found.get(id(layer), (layer, [], False))
        calls = [*calls, CallShapes(list(inputs.values()), tuple(node.outputs[0].shape))]
        found[id(layer)] = layer, calls, had_gradient or has_gradient
    return list(found.values())
