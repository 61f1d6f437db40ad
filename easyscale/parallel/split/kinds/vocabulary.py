"""A last layer as wide as a vocabulary: some columns on each rank, which reduces its logits to what a loss needs."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import keras

from easyscale.communicator import Communicator
from easyscale.parallel.split.kinds.kind import CallShapes, Kind
from easyscale.parallel.split.trip import Columns, Trip, WithinGroup, within

__all__ = ["Vocabulary"]

_NUMBERS = 4  # returned by an owner for each row
_LARGEST = 1 << 24  # integers up to this are exact in float32


class _Call(NamedTuple):
    """A call of the layer, before any communication.

    Attributes:
        output: Tensor. A placeholder for its output: NaN.
        inputs: Tensor. Its input.
        passage: Function. See `Kind.call`.
    """

    output: Any
    inputs: Any
    passage: Callable[..., Any]


class Vocabulary(Kind):
    """Some columns of the last `Dense` on each rank, and the cross entropy of their logits, which are never gathered.

        l = log sum_c exp(z_c) - z_y,    where z = x w + b

    In place of logits, the owner of some columns returns for each row: the logarithm of the sum of their exponentials;
    the logit of the label if its column is one of them, else 0; and the largest logit with its column. With `P` ranks,
    and `m` rows of `a` bytes in total on each worker, a rank sends in a step

        (P - 1) (a + 4 m)    the rows, and their labels, to each other owner
        (P - 1) 16 m         four numbers for each row, to each other worker
        (P - 1) 16 m         their gradients
        (P - 1) a            the gradients of the rows, to each worker its own, which sums them

    in `5 (P - 1)` messages, however large the vocabulary is.

    Reference: Shoeybi et al., "Megatron-LM", 2019, section 3: the cross entropy of a parallel output embedding.
    """

    way, trip_class, is_automatic = "vocabulary", Columns, False
    width = _NUMBERS

    def __init__(self, layer: keras.layers.Dense):
        super().__init__(layer)
        width, self.length = layer.kernel.shape
        self.row_shape, self.row_dtype = (width,), layer.compute_dtype
        self._call: _Call | None = None  # the last

    @classmethod
    def suits(cls, layer: keras.layers.Layer) -> bool:
        return type(layer) is keras.layers.Dense and layer.activation in (
            keras.activations.linear,
            keras.activations.softmax,
        )

    @property
    def indices(self) -> str:
        return "columns"

    def refusals(self) -> Iterator[tuple[str, str, str]]:
        if self.length > _LARGEST:
            rule = f"a layer that is split by vocabulary must have {_LARGEST:,} columns or less"
            yield rule, f"of {self.length:,} columns", "Split it by columns"
        if self.layer.activity_regularizer is not None:
            rule = "a layer that is split by vocabulary has no output"
            yield rule, "with an `activity_regularizer`", "Split it by columns"

    @property
    def slices(self) -> list[tuple[keras.Variable, int]]:
        return [(self.layer.kernel, 1), *([(self.layer.bias, 0)] if self.layer.bias is not None else [])]

    def trip(self, communicator: Communicator) -> Trip:
        return Columns(communicator, communicator.size, _NUMBERS)

    def trip_within(self, group: Communicator) -> WithinGroup:
        return within(Columns)(group, group.size, _NUMBERS)

    def count_rows(self, shape: tuple[int, ...]) -> int:
        return math.prod(shape[1:-1])

    def cost(self, samples: int, calls: Sequence[CallShapes], ranks: int, has_gradient: bool) -> float:
        rows = self.count(samples, calls)
        into, out = (rows * self._itemsize * width for width in (*self.row_shape, ranks * _NUMBERS))
        return Columns.cost(into, out, ranks, has_gradient) + (ranks - 1) * 4 * rows

    def rows(self, form: int) -> list[tuple[tuple[int | None, ...], str]]:
        return [(self.row_shape, self.row_dtype), ((), "int32")]

    def call(self, passage: Callable[..., Any], inputs: Any, *_: Any, **__: Any) -> Any:
        """Return a placeholder that must not be used in computations: `losses` computes the loss."""
        shape = (*keras.ops.shape(inputs)[:-1], self.length)
        unknown = keras.ops.convert_to_tensor(float("nan"), self.layer.compute_dtype)
        self._call = _Call(keras.ops.broadcast_to(unknown, shape), inputs, passage)
        return self._call.output

    def losses(self, labels: Any, output: Any) -> tuple[Any, Any]:
        """Return the cross entropy of each row, and the column of its largest logit, in the graph.

        Args:
            labels: Tensor of int32. The correct column for each row. The loss is NaN if there is no such column.
            output: Tensor. The result of the layer's last call.
        """
        call = self._call
        if call is None or call.output is not output:
            raise ValueError(
                "the loss of a layer that is split by vocabulary must be of its output. Received: another tensor for "
                f"'{self.layer.name}'. Split it by columns"
            )
        rows = keras.ops.reshape(call.inputs, (-1, *self.row_shape))
        flat = keras.ops.reshape(labels, (-1,))
        of_owners = keras.ops.reshape(call.passage([rows, flat]), (keras.ops.shape(flat)[0], -1, _NUMBERS))
        sums, of_label, largest, columns = keras.ops.unstack(of_owners, _NUMBERS, axis=-1)
        losses = keras.ops.logsumexp(sums, axis=-1) - keras.ops.sum(of_label, axis=-1)
        is_column = keras.ops.logical_and(flat >= 0, flat < self.length)
        losses = keras.ops.where(is_column, losses, float("nan"))
        owner = keras.ops.argmax(largest, axis=-1)[:, None]  # the first, as with whole logits
        best = keras.ops.cast(keras.ops.take_along_axis(columns, owner, axis=-1)[:, 0], "int32")
        shape = keras.ops.shape(labels)
        return keras.ops.reshape(losses, shape), keras.ops.reshape(best, shape)

    def compute(self, tensors: list[Any], form: int, owned: range) -> Any:
        rows, labels = tensors
        logits = keras.ops.matmul(rows, self.layer.kernel)
        if self.layer.bias is not None:
            logits = keras.ops.add(logits, self.layer.bias)
        column = labels - owned.start
        is_owned = keras.ops.logical_and(column >= 0, column < len(owned))
        column = keras.ops.where(is_owned, column, 0)[:, None]
        of_label = keras.ops.where(is_owned, keras.ops.take_along_axis(logits, column, axis=-1)[:, 0], 0.0)
        values = keras.ops.stop_gradient(logits)
        best = keras.ops.cast(owned.start + keras.ops.argmax(values, axis=-1), logits.dtype)
        largest = keras.ops.max(values, axis=-1)
        return keras.ops.stack([keras.ops.logsumexp(logits, axis=-1), of_label, largest, best], axis=-1)
