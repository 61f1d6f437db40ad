"""Attention with some heads on each rank, which computes them for the samples of all workers."""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from easyscale.keras_internals import layers_of, mask_of, set_mask
from easyscale.parallel.split.kinds.kind import CallShapes, Kind
from easyscale.parallel.split.trip import Summands

__all__ = ["GroupedHeads", "Heads"]

_MASKS = (2, 2, 2, 3)  # the number of axes, samples included, of a mask of queries, values, keys, and pairs


class _Form(NamedTuple):
    """The signature of a call of attention, without the data.

    Attributes:
        value: Int. Whether values are the queries, 0, or others, 1.
        key: Int. Whether keys are the queries, 0, the values, 1, or others, 2.
        masks: Four of 0 and 1. Whether there are masks of queries, values, keys, and pairs.
        is_causal, training: 0 or 1. As arguments of the layer.
    """

    value: int
    key: int
    masks: tuple[int, ...]
    is_causal: int
    training: int

    @property
    def number(self) -> int:
        return int(np.ravel_multi_index((self.value, self.key, *self.masks, self.is_causal, self.training), _SIZES))

    @classmethod
    def of(cls, number: int) -> "_Form":
        value, key, *masks, is_causal, training = map(int, np.unravel_index(number, _SIZES))
        return cls(value, key, tuple(masks), is_causal, training)


_SIZES = (2, 3, *[2] * len(_MASKS), 2, 2)


class _OfAttention(Kind):
    """Attention, each head of which is on one rank, with its rows of the output projection. See `Summands`.

    No intermediate values of a head are sent. What is sent: the inputs, each tensor once even if it serves as queries,
    keys and values; masks, as bytes; and each head's summand of the output.

    The owner of a head draws its dropout of scores, for all samples, from its own random numbers.

    Reference: Shoeybi et al., "Megatron-LM", 2019.
    """

    way, trip_class = "heads", Summands
    _takes_masks_away = False  # from its inputs; sets that of the queries on its output, without `compute_mask`

    def __init__(self, layer: keras.layers.Layer):
        super().__init__(layer)
        parts = {part.name: part for part in layers_of(layer)}
        self._into = [parts[name] for name in ("query", "key", "value")]
        self._gate, self._output = parts.get("gate"), parts["attention_output"]
        self.row_dtype = layer.compute_dtype

    def refusals(self) -> Iterator[tuple[str, str, str]]:
        if len(self._into[0].equation.partition(",")[0]) != 3:
            rule = "attention that is split by heads must be over the one axis between samples and numbers"
            yield rule, "with several such axes", "Leave it out of the pattern"
        if any(layer.activity_regularizer is not None for layer in layers_of(self.layer)):
            rule = "a layer that is split knows no loss of its activities"
            yield rule, "with an `activity_regularizer`", "Leave it out of the pattern"

    @property
    def slices(self) -> list[tuple[keras.Variable, int]]:
        dense = [*self._into, *([] if self._gate is None else [self._gate])]
        biases = [(layer.bias, 0) for layer in dense if layer.bias is not None]
        return [*((layer.kernel, 1) for layer in dense), *biases, (self._output.kernel, 0)]

    def count_rows(self, shape: tuple[int, ...]) -> int:
        return 1  # a whole sample: heads need all its positions

    def cost(self, samples: int, calls: Sequence[CallShapes], ranks: int, has_gradient: bool) -> float:
        into = sum(math.prod(shape[1:]) for call in calls for shape in call.inputs)
        out = sum(math.prod(call.output[1:]) for call in calls)
        size = samples * self._itemsize
        return Summands.cost(size * into, size * out, ranks, has_gradient)

    def rows(self, form: int) -> list[tuple[tuple[int | None, ...], str]]:
        known, widths = _Form.of(form), [layer.kernel.shape[0] for layer in self._into]
        queries, keys, values = ((None, width) for width in widths)
        tensors = [queries, *([values] if known.value == 1 else []), *([keys] if known.key == 2 else [])]
        masks = [(None,) * (axes - 1) for axes, is_there in zip(_MASKS, known.masks, strict=True) if is_there]
        return [*((shape, self.row_dtype) for shape in tensors), *((shape, "uint8") for shape in masks)]

    def call(
        self,
        passage: Callable[..., Any],
        query: Any,
        value: Any,
        key: Any = None,
        query_mask: Any = None,
        value_mask: Any = None,
        key_mask: Any = None,
        attention_mask: Any = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
        **__: Any,
    ) -> Any:
        if return_attention_scores:
            raise ValueError(
                "attention that is split by heads keeps its scores where the heads are. Received: "
                f"return_attention_scores=True in a call of '{self.layer.name}'. Leave the layer out of `Split`"
            )
        key = value if key is None else key
        if self._takes_masks_away:
            query_mask = mask_of(query)
            for tensor in (query, value, key):
                set_mask(tensor, None)
        masks = [query_mask, value_mask, key_mask, self._of_pairs(attention_mask)]
        form = _Form(
            int(value is not query),
            0 if key is query else 1 if key is value else 2,
            tuple(int(mask is not None) for mask in masks),
            int(use_causal_mask),
            int(bool(training) and self.layer.dropout > 0),
        )
        tensors = [query, *([value] if form.value == 1 else []), *([key] if form.key == 2 else [])]
        sent = [keras.ops.cast(_of_each(mask, query), "uint8") for mask in masks if mask is not None]
        output = passage([*tensors, *sent], form.number)
        if self._output.bias is not None:
            output = keras.ops.add(output, self._output.bias)
        if self._takes_masks_away and query_mask is not None:
            set_mask(output, query_mask)
        return output

    def _of_pairs(self, mask: Any) -> Any:
        """Return a mask of pairs of positions with an axis for samples."""
        if mask is None:
            return None
        if len(mask.shape) > 3:
            raise ValueError(
                "attention that is split by heads takes a mask of (samples, queries, values). Received: "
                f"attention_mask of shape {tuple(mask.shape)} in a call of '{self.layer.name}'. Leave the axis of "
                "heads out, or the layer out of `Split`"
            )
        mask = keras.ops.cast(mask, "bool")
        return keras.ops.reshape(mask, (*[1] * (3 - len(mask.shape)), *keras.ops.shape(mask)))

    def compute(self, tensors: list[Any], form: int, owned: range) -> Any:
        known, left = _Form.of(form), list(tensors)
        query = left.pop(0)
        value = left.pop(0) if known.value == 1 else query
        key = left.pop(0) if known.key == 2 else (query, value)[known.key]
        masks = [keras.ops.cast(left.pop(0), "bool") if is_there else None for is_there in known.masks]
        if self._takes_masks_away:
            set_mask(query, masks[0])
        with _summand(self._output):
            return type(self.layer).call(
                self.layer,
                query,
                value,
                key=key,
                query_mask=masks[0],
                value_mask=masks[1],
                key_mask=masks[2],
                attention_mask=masks[3],
                training=bool(known.training),
                use_causal_mask=bool(known.is_causal),
            )


class Heads(_OfAttention):
    """Some heads of a `MultiHeadAttention` on each rank: their queries, keys, values, and output projection's rows.

    y = softmax(x q0 (x k0)^T) x v0 o0 + softmax(x q1 (x k1)^T) x v1 o1 + b
    """

    _takes_masks_away = True

    def __init__(self, layer: keras.layers.MultiHeadAttention):
        super().__init__(layer)
        self.length = layer.num_heads

    @classmethod
    def suits(cls, layer: keras.layers.Layer) -> bool:
        return type(layer) is keras.layers.MultiHeadAttention


class GroupedHeads(_OfAttention):
    """Some key and value heads of a `GroupQueryAttention` on each rank, and the query heads that use them."""

    def __init__(self, layer: keras.layers.GroupQueryAttention):
        super().__init__(layer)
        self.length = layer.num_key_value_heads

    @property
    def indices(self) -> str:
        return "heads of keys"

    @classmethod
    def suits(cls, layer: keras.layers.Layer) -> bool:
        return type(layer) is keras.layers.GroupQueryAttention


def _of_each(mask: Any, query: Any) -> Any:
    """Return a mask with a row for each sample, from one that may be shared by all."""
    return keras.ops.broadcast_to(mask, (keras.ops.shape(query)[0], *keras.ops.shape(mask)[1:]))


@contextlib.contextmanager
def _summand(dense: keras.layers.EinsumDense) -> Iterator[None]:
    """Make a layer leave out its bias within this context: it is added to the sum."""
    object.__setattr__(dense, "call", lambda inputs, **_: keras.ops.einsum(dense.equation, inputs, dense.kernel))
    try:
        yield
    finally:
        vars(dense).pop("call")
