"""The update of weights as a graph of its own, which rounds the same way on all workers."""

import math
from collections.abc import Callable, Sequence

import tensorflow as tf

from easyscale.backend.tensorflow.internals import NO_INLINE
from easyscale.communicator import Communicator
from easyscale.layout.specs import Variable
from easyscale.step.context import Apply, Gradient

__all__ = ["CompiledUpdate"]

# Number of elements updated together from which XLA pays. Below it, the call overhead exceeds what a single loop over
# memory saves, and compiling adds half a second to startup. Measured for SGD with momentum and for Adam.
XLA_FROM = 1 << 17


class CompiledUpdate:
    """Calls functions that update variables, each in a graph of its own.

    TensorFlow optimizes each graph as a whole. So the same update would round differently after a model's backward pass
    and in a worker that only joins, and the workers' weights would drift apart.

    Args:
        communicator: The `Communicator`. A single process needs such a graph only to compile it.
        has_copies: Bool. Whether a model's variables have copies on several devices.
    """

    def __init__(self, communicator: Communicator, has_copies: bool):
        self._communicator, self._has_copies = communicator, has_copies
        self._graphs: dict[tuple, Callable[[list[Gradient]], None]] = {}

    def forget(self) -> None:
        """Discard all traces, because code that they call has changed."""
        self._graphs.clear()

    @tf.autograph.experimental.do_not_convert
    def __call__(
        self, apply: Apply, gradients: Sequence[Gradient], variables: Sequence[Variable], compiles: bool = False
    ) -> None:
        """Call `apply(gradients, variables)`.

        Args:
            apply: Callable. Changes variables.
            gradients: Tensors, `IndexedSlices` or `None`.
            variables: The variables they belong to.
            compiles: Bool. Whether XLA may compile the graph. It does so for large, dense gradients: the
                multiplications and additions for each state then become one loop over memory. Defaults to `False`.
        """
        present = [index for index, gradient in enumerate(gradients) if gradient is not None]
        compiles = compiles and not any(isinstance(gradient, tf.IndexedSlices) for gradient in gradients)
        compiles = compiles and sum(math.prod(variables[index].shape) for index in present) >= XLA_FROM
        # A user's own strategy, which a single process may have, sums gradients in `apply`: only in its own graph.
        compiles = compiles and (self._has_copies or not tf.distribute.has_strategy())
        if not present or (self._communicator.size == 1 and not compiles):
            apply(list(gradients), list(variables))
        else:
            # `apply` is part of the key: a slice of a layer is the same variable in `fit()` and outside of it.
            key = apply, *(id(variables[index]) for index in present), *(type(gradients[index]) for index in present)
            if key not in self._graphs:
                chosen = [variables[index] for index in present]
                update = tf.function(
                    lambda gradients: apply(gradients, chosen),
                    autograph=False,
                    jit_compile=compiles or None,
                    reduce_retracing=True,
                    experimental_attributes=NO_INLINE,
                )
                # Nested in another graph even if this worker steps eagerly: workers that only join have one.
                self._graphs[key] = tf.function(
                    lambda gradients, update=update: update(gradients), autograph=False, reduce_retracing=True
                )
            self._graphs[key]([gradients[index] for index in present])
