"""Wrappers for TensorFlow's private APIs. `check` reports those that are missing."""

import contextlib
import functools
import importlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from easyscale.keras_internals import require

__all__ = ["NO_INLINE", "Halves", "check", "mirrored", "of_replicas", "outside"]

NO_INLINE = {"_noinline": True}  # attributes of a function that must stay a graph of its own

_LIBRARY = "tensorflow.python.distribute.distribute_lib"
_UTILS = "tensorflow.python.distribute.distribute_utils"
_VALUES = "tensorflow.python.distribute.values"


@functools.cache
def check() -> None:
    """Raise `EasyScaleError` if the installed TensorFlow lacks one of these names."""
    require("tensorflow")


@contextlib.contextmanager
def outside() -> Iterator[None]:
    """Hide the strategy from TensorFlow and Keras: variables are read on the first device, and written on all."""
    library = importlib.import_module(_LIBRARY)
    library._push_per_thread_mode(library._get_default_replica_mode())
    try:
        yield
    finally:
        library._pop_per_thread_mode()


def mirrored(tensors: Sequence[tf.Tensor]) -> Any:
    """Return equal tensors of several devices as one value."""
    wrap_class = importlib.import_module(_VALUES).Mirrored
    return importlib.import_module(_UTILS).regroup(tensors, wrap_class=wrap_class)


def of_replicas(parts: Sequence[Any]) -> Any:
    """Return the values of the replicas as one value."""
    return importlib.import_module(_VALUES).PerReplica(parts)


class Halves:
    """The forward and the backward pass of a traced function, without a tape.

    A tape visits each of the hundreds of tensors that the backward pass needs from the forward pass: some 7 % of the
    time of passes through a few samples.

    Args:
        traced: The result of `get_concrete_function`.
    """

    def __init__(self, traced: Any):
        self._captured, self._outputs = traced.captured_inputs, len(traced.outputs)
        inputs = len(traced.inputs) - len(self._captured)
        self._positions = {id(tensor): inputs + number for number, tensor in enumerate(self._captured)}
        self._forward, backward = traced._delayed_rewrite_functions.forward_backward()
        numbers = {id(tensor): number for number, tensor in enumerate(traced.graph.outputs)}
        self._needed = [numbers.get(id(tensor), tensor) for tensor in backward.captured_inputs]
        self._backward, self._gradients = backward._inference_function, backward.structured_outputs

    def position_of(self, captured: tf.Tensor) -> int | None:
        """Return the position of a captured tensor's gradient in `backward`'s result; `None` if it was not captured."""
        return self._positions.get(id(captured))

    def forward(self, tensors: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Return the outputs, and the tensors that the backward pass needs.

        Args:
            tensors: The inputs.
        """
        outputs = list(self._forward.call_flat(*tensors, *self._captured))
        needed = [outputs[one] if isinstance(one, int) else one for one in self._needed]
        return outputs[: self._outputs], needed

    def backward(self, gradients: Sequence[tf.Tensor], needed: Sequence[tf.Tensor]) -> list[Any]:
        """Return the gradients with respect to the inputs, then the captured tensors; `None` where there is none.

        Args:
            gradients: The gradient with respect to each output of a float type.
            needed: The second result of `forward`.
        """
        found = iter(self._backward.call_flat(*gradients, *needed))
        return [_next_of(found, form) for form in self._gradients]


def _next_of(tensors: Iterator[tf.Tensor], form: Any) -> Any:
    if form is None:
        return None
    if not isinstance(form, tf.IndexedSlices):
        return next(tensors)
    values, indices = next(tensors), next(tensors)
    return tf.IndexedSlices(values, indices, None if form.dense_shape is None else next(tensors))
