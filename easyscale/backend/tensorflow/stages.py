"""The passes of one pipeline stage, each a graph that Python calls for one micro-batch."""

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from easyscale.backend.base import StagePasses
from easyscale.backend.tensorflow import internals
from easyscale.backend.tensorflow.gradient_sums import GradientSums
from easyscale.backend.tensorflow.internals import Halves
from easyscale.backend.tensorflow.variables import native_of, view_of
from easyscale.layout.specs import Variable

__all__ = ["Passes"]


class Passes(StagePasses):
    """Traces a stage's forward pass once; its backward pass is the gradient of that graph.

    Tensors that the backward pass needs are kept until it has run. So nothing is computed twice, as with recomputation,
    and a layer that draws random numbers, or counts, does so once. The memory cost is determined by the schedule: the
    activations of the micro-batches that are alive.

    Args:
        run: See `Backend.stage_passes`, also for `inputs`, `watched` and `variables`.
    """

    def __init__(
        self,
        run: Callable[[list], list],
        inputs: Sequence[tuple[Sequence[int | None], np.dtype]],
        watched: Sequence[int],
        variables: Sequence[Variable],
    ):
        signature = [tf.TensorSpec(shape, tf.as_dtype(dtype)) for shape, dtype in inputs]
        self._large = GradientSums(variables)
        # `partial`: TensorFlow would count the traces of one function in several stages together, and warn of many.
        call = functools.partial(_call, run, self._large, frozenset(watched))
        self._run = tf.function(call, input_signature=[*signature, tf.TensorSpec([])], autograph=False)
        self._watched, self._dtypes = list(watched), [spec.dtype for spec in signature]
        self._variables = [native_of(variable) for variable in variables]
        self._kept: dict[int, tuple[list, list, list]] = {}
        self._sums: list[Any] = [None] * len(self._variables)
        self._rows: set[int] = set()  # variables with row-sparse gradients

    def trace(self) -> None:
        _ = self._halves

    @functools.cached_property
    def _halves(self) -> Halves:
        internals.check()
        try:
            return Halves(self._run.get_concrete_function())
        except Exception:
            if not self._large.forget():
                raise
            # A layer may write to its weights, which now works. If it is wrong, this raises again.
            return Halves(self._run.get_concrete_function())

    @functools.cached_property
    def _positions(self) -> list[int | None]:
        """The positions of the variables' gradients in the result of the backward pass."""
        return [self._halves.position_of(variable.handle) for variable in self._variables]

    def forward(self, number: int, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        tensors = [tf.convert_to_tensor(array, dtype) for array, dtype in zip(arrays, self._dtypes, strict=True)]
        outputs, needed = self._halves.forward([*tensors, self._large.token])
        watched = [tensors[index] for index in self._watched]
        self._kept[number] = watched, outputs, needed
        return [view_of(output) for output in outputs]

    def backward(self, number: int, gradients: Sequence[np.ndarray | None]) -> list[np.ndarray]:
        watched, outputs, needed = self._kept.pop(number)
        given = [
            tf.zeros_like(output) if gradient is None else tf.convert_to_tensor(gradient, output.dtype)
            for output, gradient in zip(outputs, gradients, strict=True)
            if output.dtype.is_floating or output.dtype.is_complex
        ]
        self._large.begin_backward()
        found = self._halves.backward(given, needed)
        del needed
        by_watched = [found[index] for index in self._watched]
        by_variables = [None if position is None else found[position] for position in self._positions]
        del found
        for index in reversed(range(len(by_variables))):
            self._add(index, by_variables.pop())  # and free its memory
        return [
            view_of(tf.zeros_like(tensor) if gradient is None else gradient)
            for tensor, gradient in zip(watched, by_watched, strict=True)
        ]

    def _add(self, index: int, gradient: Any) -> None:
        total = self._sums[index]
        if total is None:
            self._sums[index] = gradient
        elif isinstance(gradient, tf.IndexedSlices) and isinstance(total, tf.IndexedSlices):
            values = tf.concat([total.values, gradient.values], 0)
            self._sums[index] = tf.IndexedSlices(
                values, tf.concat([total.indices, gradient.indices], 0), total.dense_shape
            )
        elif gradient is not None:
            self._sums[index] = tf.raw_ops.AddV2(x=_dense(total), y=_dense(gradient))  # `+` has more overhead

    def take(self, whole: Collection[int] = ()) -> list[Any]:
        taken, self._sums = self._sums, [None] * len(self._variables)
        for index, gradient in enumerate(taken):
            taken[index] = self._large.take(index) if gradient is None else gradient
        self._large.end()
        for index in whole:
            taken[index] = None if taken[index] is None else tf.convert_to_tensor(taken[index])
        self._rows |= {index for index, gradient in enumerate(taken) if isinstance(gradient, tf.IndexedSlices)}
        rows = self._rows.difference(whole)
        return [self._nothing(index, rows) if one is None else one for index, one in enumerate(taken)]

    def _nothing(self, index: int, in_rows: Collection[int]) -> Any:
        variable = self._variables[index]
        if index not in in_rows:
            return tf.zeros(variable.shape, variable.dtype)
        rows = tf.zeros([0, *variable.shape[1:]], variable.dtype)
        return tf.IndexedSlices(rows, tf.zeros([0], tf.int32), tf.constant(variable.shape.as_list(), tf.int32))


def _dense(gradient: Any) -> tf.Tensor:
    return tf.convert_to_tensor(gradient) if isinstance(gradient, tf.IndexedSlices) else gradient


def _call(run: Callable[[list], list], large: GradientSums, watched: Collection[int], *tensors: tf.Tensor) -> list:
    *inputs, token = tensors
    inputs = [tensor if index in watched else _without_gradient(tensor) for index, tensor in enumerate(inputs)]
    with large.reading(token):
        return run(inputs)


def _without_gradient(tensor: tf.Tensor) -> tf.Tensor:
    """Return an equal tensor that the backward pass does not reach.

    A graph's backward pass computes the gradients of all inputs, wanted or not. With `tf.stop_gradient` it would still
    compute those of the layers after it: a split layer would send them to others, and nobody would receive them.
    """
    if not (tensor.dtype.is_floating or tensor.dtype.is_complex):
        return tensor
    integers = {1: tf.uint8, 2: tf.uint16, 4: tf.int32}.get(tensor.dtype.size, tf.int64)
    return tf.bitcast(tf.bitcast(tensor, integers), tensor.dtype)
