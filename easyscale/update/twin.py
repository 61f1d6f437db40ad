"""A copy of an optimizer that works on parts of its variables."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from easyscale import backend as backends
from easyscale.keras_internals import count_alike, counter_of, excluded_from_weight_decay, learning_rate_of
from easyscale.optimizers.renewed import make_anew, replace
from easyscale.update.element_wise import copy_of

__all__ = ["Twin", "forget", "share_progress", "states_of"]


class Twin:
    """A copy of an optimizer, with one piece for each of its variables.

    It shares the original's step count and learning rate, and excludes the same weights from weight decay. It does not
    clip by norms, which depend on whole gradients: `clip` does.

    Args:
        original: The optimizer to copy.
        variables: The variables that `original` trains.
        shapes: The shape of each piece; `None` if the piece is the variable itself.

    Attributes:
        optimizer: The optimizer of the pieces. It is built.
        pieces: List of variables.
    """

    def __init__(
        self,
        original: keras.optimizers.Optimizer,
        variables: list[keras.Variable],
        shapes: Sequence[tuple[int, ...] | None],
    ):
        self.pieces = [
            variable
            if shape is None
            else keras.Variable(np.zeros(shape, variable.dtype), dtype=variable.dtype, name=variable.name)
            for variable, shape in zip(variables, shapes, strict=True)
        ]
        self._original = original
        self._number_of = {id(piece): number for number, piece in enumerate(self.pieces)}
        self.optimizer = copy_of(original)
        share_progress(original, self.optimizer)
        self._exclude_from_weight_decay(original, variables)
        self._owners: dict[int, int] = {}  # the piece of each state, by identity
        add = self.optimizer.add_variable_from_reference

        def add_variable_from_reference(
            reference_variable: keras.Variable, name: str | None = None, initializer: str = "zeros"
        ) -> keras.Variable:
            state = add(reference_variable, name=name, initializer=initializer)
            self._owners[id(state)] = self._number_of[id(reference_variable)]
            return state

        object.__setattr__(self.optimizer, "add_variable_from_reference", add_variable_from_reference)
        self.optimizer.build(self.pieces)

    def _exclude_from_weight_decay(self, original: keras.optimizers.Optimizer, variables: list[keras.Variable]) -> None:
        excluded, patterns = excluded_from_weight_decay(original, variables)
        if excluded or patterns is not None:
            self.optimizer.exclude_from_weight_decay([self.pieces[number] for number in excluded], patterns)

    def number_of(self, piece: keras.Variable) -> int:
        """Return the number of a piece."""
        return self._number_of[id(piece)]

    def clip(self, gradients: list, total_of_squares: Callable[[list], Any]) -> list:
        """Return gradients, clipped as by Keras with the original's current `clipnorm` or `global_clipnorm`.

        With `clipnorm` Keras scales the rows of a sparse gradient without merging duplicates: an optimizer that squares
        gradients then squares each sample's part separately. With `global_clipnorm` it makes them dense, which sums
        duplicates.

        Args:
            gradients: Tensors or `IndexedSlices`, which may be parts.
            total_of_squares: Function. Returns, for each of them, the sum of squares of the whole gradient.
        """
        clipnorm, global_clipnorm = self._original.clipnorm, self._original.global_clipnorm
        clips = clipnorm and clipnorm > 0
        if not clips and not (global_clipnorm and global_clipnorm > 0):
            return gradients
        norms = keras.ops.sqrt(total_of_squares(gradients)) / (self._original.loss_scale_factor or 1.0)
        if clips:
            factors = clipnorm / keras.ops.maximum(norms, clipnorm)
            return [backends.get().scaled(gradient, factors[index]) for index, gradient in enumerate(gradients)]
        norm = keras.ops.sqrt(keras.ops.sum(keras.ops.square(norms)))
        factor = global_clipnorm * keras.ops.minimum(1 / norm, 1 / global_clipnorm)
        factor += norm - norm  # one infinite gradient makes all weights NaN, as in one process
        return [gradient * keras.ops.cast(factor, gradient.dtype) for gradient in gradients]

    @property
    def states(self) -> list[keras.Variable]:
        """The variables of the optimizer that are state, of a piece or of none."""
        return states_of(self.optimizer)

    @property
    def numbers(self) -> list[int | None]:
        """The number of the piece of each of the `states`; `None` if it belongs to none."""
        return [self._owners.get(id(state)) for state in self.states]

    def is_progress(self, variable: keras.Variable) -> bool:
        """Return whether a variable of the optimizer is shared with the original: step count or learning rate."""
        return _is_progress(self.optimizer, variable)


def states_of(optimizer: keras.optimizers.Optimizer) -> list[keras.Variable]:
    """Return the variables of an optimizer, except for the step count and the learning rate."""
    return [variable for variable in optimizer.variables if not _is_progress(optimizer, variable)]


def forget(optimizer: keras.optimizers.Optimizer) -> None:
    """Reset an optimizer to its unbuilt form, so that its state takes no memory."""
    if optimizer.built:
        new = make_anew(optimizer)
        share_progress(optimizer, new)
        replace(optimizer, new)


def _progress(optimizer: keras.optimizers.Optimizer) -> list[keras.Variable]:
    rate = learning_rate_of(optimizer)
    return [counter_of(optimizer), *([rate] if isinstance(rate, keras.Variable) else [])]


def _is_progress(optimizer: keras.optimizers.Optimizer, variable: keras.Variable) -> bool:
    return any(variable is shared for shared in _progress(optimizer))


def share_progress(optimizer: keras.optimizers.Optimizer, other: keras.optimizers.Optimizer) -> None:
    """Make `other` use the step count and learning rate of `optimizer`."""
    count_alike(optimizer, other, dict(zip(map(id, _progress(other)), _progress(optimizer), strict=False)))
