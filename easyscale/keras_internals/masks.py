"""Tensors of a model that have masks when its layers are called.

The graph of a model records which tensors had masks when it was built. When layers are called, fewer may have them:
`MultiHeadAttention` removes the masks of its inputs, so a later layer with the same inputs finds none.
"""

import importlib
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["mask_of", "masked_before", "set_mask"]

_TAKEN = ("query", "value", "key")  # inputs whose masks `MultiHeadAttention` removes, unlike other attention layers


def mask_of(tensor: Any) -> Any:
    """Return the mask that a layer has given its output; `None` if there is none."""
    return getattr(tensor, "_keras_mask", None)


def set_mask(tensor: Any, mask: Any) -> None:
    """Give a tensor a mask, as a layer does with its output."""
    tensor._keras_mask = mask


def masked_before(
    nodes: Sequence[Any], inner: Callable[[Any], tuple[list, list, list] | None], masked: set[int] | None = None
) -> list[set[int]]:
    """Return the `id`s of the tensors that have a mask before each call of a layer, and after the last one.

    Args:
        nodes: The calls, in order.
        inner: Function. Returns inputs, calls and outputs of a layer that is a model, and `None` for others.
        masked: Set. The tensors that have a mask at the start. Defaults to `None`: none.
    """
    now = set(masked or ())
    found = []
    for node in nodes:
        found.append(set(now))
        _follow(node, now, inner)
    return [*found, now]


def _follow(node: Any, masked: set[int], inner: Callable[[Any], tuple[list, list, list] | None]) -> None:
    """Update `masked` with the effect of a call."""
    keras = importlib.import_module("keras")
    layer, flatten = node.operation, keras.tree.flatten
    if not isinstance(layer, keras.layers.Layer):
        return
    args, kwargs = node.arguments.args, node.arguments.kwargs
    first = args[0] if args else next(iter(kwargs.values()))
    before = kwargs.get("mask")
    if before is None:
        before = keras.tree.map_structure(lambda tensor: mask_of(tensor) if id(tensor) in masked else None, first)
    if (graph := inner(layer)) is not None:
        inputs, nodes, outputs = graph
        pairs = list(zip(inputs, flatten(first), strict=False))
        *_, behind = masked_before(nodes, inner, {id(own) for own, tensor in pairs if id(tensor) in masked})
        masked -= {id(tensor) for own, tensor in pairs if id(own) not in behind}
        masked |= {id(out) for own, out in zip(outputs, node.outputs, strict=False) if id(own) in behind}
    elif isinstance(layer, keras.layers.MultiHeadAttention):
        has_mask = id(first) in masked
        masked -= {id(tensor) for tensor in [*args[: len(_TAKEN)], *(kwargs.get(name) for name in _TAKEN)]}
        masked |= {id(tensor) for tensor in node.outputs[:1] if has_mask}
    if layer.supports_masking and not all(id(tensor) in masked for tensor in node.outputs):
        masks = flatten(layer.compute_mask(first, before))
        masked |= {id(tensor) for tensor, mask in zip(node.outputs, masks, strict=False) if mask is not None}
