"""What TensorFlow has no public name for, each behind a name that says what it is. `check` says what is missing."""

import contextlib
import functools
import importlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from easyscale.keras_internals import require

__all__ = ["NO_INLINE", "Halves", "check", "mirrored", "of_replicas", "outside"]

NO_INLINE = {"_noinline": True}  # the attributes of a function that stays a graph of its own

_LIBRARY = "tensorflow.python.distribute.distribute_lib"
_UTILS = "tensorflow.python.distribute.distribute_utils"
_VALUES = "tensorflow.python.distribute.values"


@functools.cache
def check() -> None:
    """Raise `EasyScaleError` if the TensorFlow that is installed has another name for something."""
    require("tensorflow")


@contextlib.contextmanager
def outside() -> Iterator[None]:
    """Inside, TensorFlow and Keras know of no strategy: variables are read on the first device, and written on all."""
    library = importlib.import_module(_LIBRARY)
    library._push_per_thread_mode(library._get_default_replica_mode())
    try:
        yield
    finally:
        library._pop_per_thread_mode()


def mirrored(tensors: Sequence[tf.Tensor]) -> Any:
    """Return tensors of several devices, which are the same, as one value."""
    wrap_class = importlib.import_module(_VALUES).Mirrored
    return importlib.import_module(_UTILS).regroup(tensors, wrap_class=wrap_class)


def of_replicas(parts: Sequence[Any]) -> Any:
    """Return what each replica has, as one value."""
    return importlib.import_module(_VALUES).PerReplica(parts)


class Halves:
    """The forward and the backward pass of a function that is traced, without a tape.

    A tape looks at each tensor that the backward pass needs of the forward pass, of which there are hundreds: some 7 %
    of the time of passes through a few samples.

    Args:
        traced: What `get_concrete_function` returns.
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
        """Return where `backward` has the gradient by what was captured; `None` if it was not."""
        return self._positions.get(id(captured))

    def forward(self, tensors: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Return the outputs, and what the backward pass needs.

        Args:
            tensors: The inputs.
        """
        outputs = list(self._forward.call_flat(*tensors, *self._captured))
        needed = [outputs[one] if isinstance(one, int) else one for one in self._needed]
        return outputs[: self._outputs], needed

    def backward(self, gradients: Sequence[tf.Tensor], needed: Sequence[tf.Tensor]) -> list[Any]:
        """Return the gradients by the inputs, and then by what was captured; `None` where there is none.

        Args:
            gradients: The gradient by each output that has one, which are those of float types.
            needed: What `forward` has returned.
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
